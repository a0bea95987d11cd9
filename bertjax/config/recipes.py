"""Makes the base configs of recipes for pre-training, tasks, distillation, and the use of finished models."""

import dataclasses
import math
import types
from typing import Any

from ml_collections import ConfigDict, config_dict

from bertjax.config.distillation import DistillationKeys, TaskDistillationKeys
from bertjax.config.finetuning import FinetuningKeys, SweepKeys
from bertjax.config.inference import INFERENCE_KEYS
from bertjax.config.pretraining import PhaseKeys, PretrainingKeys
from bertjax.config.ranges import parse_budget
from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError
from bertjax.model.config import MODERN_FORM, MODERN_SIZES, SIZES
from bertjax.tasks.registry import KINDS, options


def pretraining_config(size: str = 'base', **changes: Any) -> ConfigDict:
    """Returns the config of BERT's pre-training in one phase; `changes` replace the values of top-level keys.

    `size` is a name in `model.config.SIZES`. For the config keys, see `config.pretraining.PretrainingKeys`.
    """
    config = as_config(PretrainingKeys())
    config.model.update(SIZES[size])
    return _set_values(config, changes)


def phase(**values: Any) -> ConfigDict:
    """Returns an entry of config.phases in which `values` replace defaults, see `config.pretraining.PhaseKeys`."""
    return _set_values(as_config(PhaseKeys()), values)


def two_phases(**second: Any) -> tuple[ConfigDict, ConfigDict]:
    """Returns BERT's two phases: 90 % of the steps with 128 positions, then 512 (arXiv 1810.04805, appendix A.2).

    `second` sets further keys of the second phase.
    """
    return (
        phase(steps='90%', seq_len=128, max_predictions=20),
        phase(steps='10%', seq_len=512, max_predictions=80, **second),
    )


def modern_config(size: str, *, learning_rate: float, decay_per_step: float = 1e-5) -> ConfigDict:
    """Returns the config of ModernBERT's pre-training (arXiv 2412.13663), without phases; see `modern_phase`.

    The learning rate is constant, unless a phase sets a warm-up or a decay.

    Args:
      size: A name in `model.config.MODERN_SIZES`.
      learning_rate: The peak learning rate of the phases that do not set one.
      decay_per_step: The fraction by which a step at `learning_rate` makes the weights smaller. The original optimizer
        (`decoupled_stableadamw` in AnswerDotAI/ModernBERT) calls this value the weight decay.
    """
    config = pretraining_config(packing=True, learning_rate=learning_rate, batch_size=4608)
    config.update(seq_len=1024, max_predictions=312)
    config.model.update(MODERN_FORM | MODERN_SIZES[size])
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    config.vocab.update(family='bpe', lowercase=False, size=50368)
    config.pairs.update(mode='doc_sentences', short_probability=0.0)
    config.masking.rate = 0.3
    # StableAdamW limits each update, so the original does not clip gradients.
    config.optimizer.update(name='stable_adamw', b2=0.98, weight_decay=decay_per_step / learning_rate, clip_norm=0.0)
    config.schedule.update(name='wsd', decay_fraction=0.0)
    config.warmup_fraction = 0.0
    return config


def modern_phase(seq_len: int, **values: Any) -> ConfigDict:
    """Returns a phase of ModernBERT, in which `max_predictions` is 30 % of `seq_len`, rounded up to a multiple of 8."""
    return phase(seq_len=seq_len, max_predictions=-(-3 * seq_len // 80) * 8, **values)


_MIN_PIECES = 2048
# Rows of (maximum seconds, maximum operations, pieces). The first row that a budget fits gives its vocabulary size.
_VOCABULARIES = ((300, 1e13, _MIN_PIECES), (1800, 1e14, 4096), (8 * 3600, 3e15, 8192), (math.inf, math.inf, 16384))


def vocabulary_size(budget: str) -> int:
    """Returns the number of pieces of the vocabulary for a value of config.budget."""
    seconds, operations = parse_budget(budget)
    return next(size for time, work, size in _VOCABULARIES if seconds <= time or operations <= work)


def budget_config(budget: str, pairs: bool = False) -> ConfigDict:
    """Returns the config of the recipe configs/budget.py for a value of config.budget.

    With `pairs`, the rows are BERT's sentence pairs with segment ids, and the model predicts next sentences.
    """
    config = pretraining_config('tiny', budget=budget, architecture_from='budget', corpus='pydoc:')
    # Without `pairs`, the export is a ModernBERT. Rows are short, so there is no local attention.
    config.model.update(MODERN_FORM | {'attention_window': 0, 'rope_theta': 10_000.0, 'max_positions': 512})
    config.model.update(mlp_dim=352, init='zero_output', dropout=0.0, scan_layers=False)
    config.vocab.size = vocabulary_size(budget)
    config.corpus_options.heldout = 0.02 if config.vocab.size > _MIN_PIECES else 0.1
    config.pairs.mode = 'full_rows'
    config.masking.rate = 0.4
    config.update(seq_len=64, max_predictions=26, batch_size=16 if config.vocab.size == _MIN_PIECES else 64)
    # With a weight decay of 0.01, the weights grow so large that fine-tuning with AdamW hardly changes them.
    config.optimizer.update(name='muon', b2=0.98, weight_decay=0.1)
    config.schedule.update(name='wsd', decay='linear', decay_fraction=0.6)
    config.update(learning_rate=2e-2, warmup_fraction=0.05, log_every=50)
    config.update(eval_every=0, eval_examples=1024, checkpoint_every=0, checkpoint_minutes=10.0)
    if pairs:
        config.pairs.mode, config.masking.final_rate, config.export_formats = 'nsp', 0.15, 'orbax'
        # Without segments, the pair head is as good, but STS-B with Muon falls from a score of 0.41 to 0.26 (1 seed).
        config.model.update(num_segments=2, pooler='tanh', pooling='cls')
    return config


def finetuning_config(kind: str, **task: Any) -> ConfigDict:
    """Returns the base config of a task; see `config.finetuning.FinetuningKeys`. `task` replaces default options."""
    defaults = {name: option.default for name, option in options(kind).items()} if kind in KINDS else {}
    return as_config(FinetuningKeys(task={'kind': kind, **defaults, **task}))


def sweep(**values: tuple) -> ConfigDict:
    """Returns config.sweep with these values; see `config.finetuning.SweepKeys`."""
    return _set_values(as_config(SweepKeys()), values)


def distillation(config: ConfigDict, **values: Any) -> ConfigDict:
    """Adds config.distill to a config for pre-training or for a task, so that the run trains a student.

    `values` replace the values of keys of config.distill; see `config.distillation.DistillationKeys`.
    """
    config.run = 'distill'
    keys = TaskDistillationKeys() if 'task' in config else DistillationKeys()
    config.distill = _set_values(as_config(keys), values)
    return config


def inference_config(verb: str, **options: Any) -> ConfigDict:
    """Returns the base config of a recipe for a verb that uses a finished model.

    `options` replace the values of keys of config.VERB; see `config.inference`.
    """
    config = as_config(INFERENCE_KEYS[verb]())
    _set_values(config[verb], options)
    return config


def as_config(record: Any) -> ConfigDict:
    """Converts a dataclass of keys to a ConfigDict, without groups that are None.

    If a field declares several types, the key of the ConfigDict accepts values of any type.
    """
    config = ConfigDict()
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.metadata.get('group') and value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = as_config(value)
        elif field.metadata.get('is_list'):
            value = tuple(map(as_config, value))
        elif isinstance(field.type, types.UnionType):  # such as `bool | None`
            value = config_dict.FieldReference(value, field_type=object)
        config[field.name] = ConfigDict(value) if isinstance(value, dict) else value
    return config


def _set_values(config: ConfigDict, values: dict[str, Any]) -> ConfigDict:
    """Sets values of a config and returns the config. Unknown keys are added; `check_ranges` reports them later."""
    for key, value in values.items():
        config[key] = value
    return config


def parse_argument(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """Parses the argument of a recipe, the text after the colon in `--config=FILE.py:ARGUMENT`, to typed values.

    `large,seq=512,cased` sets the first key of `defaults` to 'large', `seq` to the integer 512 and the boolean `cased`
    to True. A value is converted to the type of its default. A tuple in `defaults` lists the allowed words; its first
    word is the default.

    Raises:
      UserError: A name is unknown, a value cannot be converted or is not allowed, or an item without `=` is neither the
        first item nor the name of a boolean.
    """
    choices = {name: default for name, default in defaults.items() if isinstance(default, tuple)}
    defaults |= {name: words[0] for name, words in choices.items()}
    values = dict(defaults)
    kinds = [f'{name} ({type(default).__name__}, default {default!r})' for name, default in defaults.items()]
    known = ', '.join(kinds) or 'no argument at all'
    first = next(iter(defaults), '')
    for position, item in enumerate(filter(None, argument.split(','))):
        name, equals, text = item.partition('=')
        if not equals and isinstance(defaults.get(name), bool):
            text = 'true'
        elif not equals and position == 0 and not isinstance(defaults.get(first, False), bool):
            name, text = first, item
        elif not equals or name not in defaults:
            fix = suggestion(name, defaults) or 'write NAME=VALUE, or the name of a boolean'
            raise UserError('--config=FILE:ARGUMENT', repr(item), known, fix)
        values[name] = _convert(name, text, defaults[name])
    for name, words in choices.items():
        if values[name] not in words:
            named = list(filter(None, dict.fromkeys(words)))
            fix = f'for example {name}={named[0]}'
            raise UserError(f'--config=FILE:{name}', repr(values[name]), f'one of {", ".join(named)}', fix)
    return types.SimpleNamespace(**values)


def _convert(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
        return type(default)(text)
    except (KeyError, ValueError):
        expected, fix = f'a value of type {type(default).__name__}', f'for example {name}={default}'
        raise UserError('--config=FILE:ARGUMENT', f'{name}={text}', expected, fix) from None
