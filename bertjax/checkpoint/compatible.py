"""Which config keys may change between a checkpoint and the run that resumes from it."""

import itertools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from bertjax.config import flatten
from bertjax.errors import UserError
from bertjax.model.config import FieldKind, fields_of

# Prefixes of keys that decide the shape or the meaning of the saved state: a change is refused.
FIXED = (
    'model.',
    'optimizer.name',
    'pairs.mode',
    'packing',
    'fingerprints.',
    'train',
    'task.kind',
    'distill.projection',
)
# ... except these fields of the model, which do not affect its parameters.
FREE = tuple(f'model.{name}' for name in fields_of(FieldKind.TRAINING, FieldKind.EXECUTION))
# Keys that a finished run was trained with: with other values its config would no longer describe the model.
TRAINING = ('seed', 'learning_rate', 'warmup_fraction', 'schedule.', 'optimizer.', 'layer_decay', 'phases')
TRAINING += ('seq_len', 'max_predictions', 'batch_size', 'accumulate', 'pairs.', 'pair_plans', 'masking.', 'distill.')
TRAINING += tuple(f'model.{name}' for name in fields_of(FieldKind.TRAINING))
# Keys that do not affect training, and those that earlier versions had: `head.`, which they never read, and `rng_impl`,
# the generator of dropout.
SILENT = ('run', 'export', 'push_', 'fingerprints.', 'corpus_options.workers', 'topology', 'card.', 'tracker', 'head.')
SILENT += ('rng_impl', 'profile', 'hang_minutes', 'beam')
# Keys that some workdirs are older than, and the value that their runs had.
LATER = {'step': 0, 'patience': 0, 'benchmark': '', 'ensemble': '', 'corpus_options.sentences': 'rules'}
LATER |= {'export_formats': 'hf,orbax', 'push_to': '', 'push_private': False}
LATER |= {'tracker': '', 'tracker_project': 'bertjax', 'tracker_run': ''}
LATER |= {'corpus_options.smoothing': 0.7, 'corpus_options.segments': 0, 'vocab.add': '', 'vocab.candidates': 0}
LATER |= {'packing': False, 'checkpoint_minutes': 0.0, 'profile': '', 'hang_minutes': 30.0, 'beam': ''}
LATER |= {'zero1': 'auto', 'embeddings': '', 'architecture': 'model', 'heldout_texts': '', 'mesh.preset': 'data'}
LATER |= {'optimizer.momentum': 0.95, 'optimizer.adam_lr_ratio': 0.3, 'masking.eval_rate': 0.15}
LATER_OF_TASKS = {'packing': 'off'}  # of fine-tuning, where the key has other values


def check_resume(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    where: str,
    *,
    fixed: Collection[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    finished: bool = False,
) -> list[str]:
    """Compares the resolved config of a checkpoint with that of the run that is to resume from it.

    Args:
      saved, now: the two.
      where: the workdir.
      fixed: further keys of which a change is refused: options of a task.
      defaults: what runs had that are older than a key.
      finished: whether no step is left to train with other settings.

    Returns:
      One line for each change that is allowed: `batch_size: 256 -> 512`.

    Raises:
      UserError: another model, tokenizer, store or optimiser, or for a finished run other training settings; names the
        first difference.
    """
    before, after = flatten(saved), flatten(now)
    changed = []
    for key in sorted({*before, *after}):
        old, new = saved_value(before, key, defaults), after.get(key)
        if old == new or (old is None and key.startswith('fingerprints.')):  # older checkpoints lack some
            continue
        refused = key in fixed or (key.startswith(FIXED) and not key.startswith(FREE))
        if refused or (finished and key.startswith(TRAINING)):
            name = key.removeprefix('fingerprints.')
            place = f'the {name}' if key.startswith('fingerprints.') else f'config.{key}'
            raise UserError(
                place,
                _short(new, old),
                f'{_short(old, new)} as in the checkpoint in {where}',
                'restore the former value to continue, or start anew in another --workdir',
            )
        if not key.startswith(SILENT) and key != 'step':
            changed.append(f'{key}: {old} -> {new}')
    return changed


def saved_value(saved: Mapping[str, Any], key: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The value of `key` in the flat config of an earlier run, None where it has none.

    A run from before a key of execution, one of LATER or of `defaults` existed had its default.
    """
    execution = {f'model.{name}': default for name, default in fields_of(FieldKind.EXECUTION).items()}
    return saved.get(key, {**execution, **LATER, **defaults}.get(key))


def _short(value: Any, other: Any) -> str:
    """`value`; of a long one, the part where it begins to differ from `other`."""
    text = str(value)
    if len(text) <= 24:
        return text
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, str(other), strict=False))
    same = len(list(alike))
    start = same if same >= 16 else 0
    return ('…' if start else '') + text[start : start + 16] + ('…' if start + 16 < len(text) else '')
