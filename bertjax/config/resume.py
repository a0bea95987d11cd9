"""Decides which config keys may differ between a checkpoint and the run that resumes from it, or between processes."""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.check import COMPUTED_KEYS, config_keys
from bertjax.config.plain import flatten
from bertjax.config.pretraining import PhaseKeys
from bertjax.config.schema import Change, Trained
from bertjax.corpus.sources import AUTO, parse_mixture
from bertjax.data.mixture import block_counts
from bertjax.errors import UserError

_SILENT = (Change.OUTPUT, Change.VERB)
# The computed values that depend on the options of the task.
_MADE_BY_TASK = ('fingerprints.data', 'fingerprints.labels', 'fingerprints.batches')
# Prefixes of the keys that may change the batches of a task.
BATCH_KEYS = ('data', 'task.', 'seq_len', 'max_padded_lengths', 'max_train_records', 'max_eval_records')
_SMOOTHING = 'corpus_options.smoothing'
_PHASE_DEFAULTS = {field.name: field.default for field in dataclasses.fields(PhaseKeys) if field.name != 'steps'}
START_WEIGHTS = ('init', 'embeddings')  # keys that name the weights at step 0
# The keys that decide the parts of a mixture and their weights.
MIXTURE_KEYS = ('data', 'corpus', 'corpus_options')


def changed_keys(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any, Change]]:
    """Returns {key: (saved value, current value, its Change)} for the keys that differ between two configs.

    The value of a missing key is None. Values that a run computes, such as its fingerprints, have Change.STATE. They
    come after the keys from which the run computes them.
    """
    known, old, new = config_keys(current), flatten(saved), flatten(current)
    # The text of a single corpus may be gone, and then the end of a path such as year=2023 looks like a weight.
    was_single = '+' not in old.get('fingerprints.store', '+')
    changes, old_weights, weights = {}, [] if was_single else _mixture_weights(old), _mixture_weights(new)
    for name in sorted({*old, *new}, key=lambda name: (name.startswith(COMPUTED_KEYS), name)):
        if old.get(name) != new.get(name):
            default = Change.STATE if name.startswith(COMPUTED_KEYS) else Change.RUN
            change = known[name].change if name in known else default
            if name.startswith('phases'):
                change = Change.TRAINING  # also if the number of phases differs
            # The paths of a mixture may change, but example n of other weights is another example.
            if (name == 'corpus' and weights != old_weights) or (name == _SMOOTHING and AUTO in weights):
                change = Change.STATE
            changes[name] = (old.get(name), new.get(name), change)
    return changes


def check_resume(
    saved: Mapping[str, Any], current: Mapping[str, Any], where: str, *, finished: bool = False
) -> list[str]:
    """Checks that a run may resume from a checkpoint, by comparing the two resolved configs.

    Args:
      saved: The config of the checkpoint.
      current: The config of the run.
      where: The path of the workdir, for the error.
      finished: Whether the run has no step left to train.

    Returns:
      A line for each reported change, such as `batch_size: 256 -> 512`.

    Raises:
      UserError: A key with Change.STATE differs, such as the architecture, or the weights of a mixture differ. Or the
        run is finished, and a key with Change.TRAINING differs. The error names the first such key.
    """
    reported, changes = [], changed_keys(saved, current)
    causes = [place_of(name) for name in changes if name.startswith(BATCH_KEYS)]
    note = f' (also changed: {", ".join(causes)})' if causes else ''
    # The evaluation splits also decide the padded lengths of the batches.
    if not causes and [name for name in changes if name.startswith(COMPUTED_KEYS)] == ['fingerprints.batches']:
        note = ' (perhaps a dev or test file has changed)'
    for name, (old, new, change) in changes.items():
        if change is Change.STATE or (finished and change is Change.TRAINING):
            found = _short(new, old) + (note if name in _MADE_BY_TASK else '')
            fix = 'restore the former value to continue, or start a new run in another --workdir'
            fix += f' with --config.init={shlex.quote(where)}' if name in ('corpus', _SMOOTHING) else ''
            raise UserError(place_of(name), found, f'{_short(old, new)} as in the checkpoint in {where}', fix)
        if change not in _SILENT and not _is_unset_in_phase(name, old, new):
            effect = ' (no effect: the weights are those of the checkpoint)' if name in START_WEIGHTS else ''
            effect = ' (no effect: the tokenizer is that of the workdir)' if name == 'tokenizer' else effect
            reported.append(f'{name}: {old} -> {new}{effect}')
    return reported


def check_processes(configs: Sequence[Mapping[str, Any]]) -> None:
    """Checks that all processes do the same work, by comparing their configs, versions, workdirs and fingerprints.

    Two kinds of keys may differ, because machines differ: keys that may be paths and are set in both processes, and
    keys with Change.VERB that, unlike `split`, do not choose the work of a single command.

    Raises:
      UserError: A process differs from the first process.
    """
    for process, config in enumerate(configs):
        known = config_keys(config)
        for name, (first, value, change) in changed_keys(configs[0], config).items():
            # Other keys of free text, such as prompts, have Change.TRAINING.
            is_set_run_key = change is Change.RUN and bool(first and value) and name in known
            may_be_path = is_set_run_key and known[name].allowed.contains('/')
            is_of_machine = change is Change.VERB and known[name].trained is not Trained.RECIPE
            if not may_be_path and not is_of_machine:
                found, expected = (
                    f'{_short(value, first)} in process {process}',
                    f'{_short(first, value)} as in process 0',
                )
                fix = 'start all processes with the same workdir, config, data and versions'
                raise UserError(place_of(name), found, expected, fix)


def _mixture_weights(config: Mapping[str, Any]) -> Sequence[int | str]:
    """Returns the examples of each part of config.corpus in a block, or AUTO for each; [] without a mixture."""
    parts = [] if config.get('data') or 'corpus' not in config else parse_mixture(config['corpus'])
    weights = [weight for _, weight in parts]
    return [] if len(weights) < 2 else weights if AUTO in weights else block_counts(weights).tolist()


def _is_unset_in_phase(name: str, old: Any, new: Any) -> bool:
    """Returns whether a change adds or removes the default of a key of a phase, or an empty list of phases."""
    value = new if old is None else old
    unset = ([], _PHASE_DEFAULTS.get(name.rpartition('.')[2]))
    return name.startswith('phases') and None in (old, new) and value in unset


def without(config: Mapping[str, Any], group: str, *changes: Change) -> dict[str, Any]:
    """Returns a plain config without `group`, and without the top-level keys whose `change` is one of `changes`.

    A group with such a key is left out as a whole.
    """
    excluded = {name.partition('.')[0] for name, key in config_keys(config).items() if key.change in changes}
    return {name: value for name, value in config.items() if name not in (group, *excluded)}


def place_of(name: str) -> str:
    """Returns the name of a key of a resolved config in messages, such as `config.seed` or `the dev split`."""
    group, _, rest = name.partition('.')
    split = ' split' if rest.startswith(('dev', 'test')) else ''
    return f'the {rest}{split}' if group == 'fingerprints' else f'config.{name}'


def _short(value: Any, other: Any) -> str:
    """Returns `value` as text. A text of more than 24 characters is cut to 16 characters.

    If both values begin with the same 16 characters, the cut text has the first difference from `other`.
    """
    text = str(value)
    if len(text) <= 24:
        return text or "''"
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, str(other), strict=False))
    common_length = len(list(common))
    start = min(common_length, len(text) - 16) if common_length >= 16 else 0
    return ('…' if start else '') + text[start : start + 16] + ('…' if start + 16 < len(text) else '')
