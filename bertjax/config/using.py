"""The keys of the verbs that use a finished model: convert, extract, fill and attention."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.config.ranges import COUNT, MANY, each, either, flag, number, one_of, only, text, whole
from bertjax.config.run import FORMATS, ROWS, SEED, TEXT
from bertjax.config.schema import from_config, group, key, override
from bertjax.errors import UserError
from bertjax.model.config import DTYPES, BertConfig
from bertjax.model.pooling import COMBINE, POOL

FEATURE_FORMATS = ('npy', 'safetensors', 'parquet', 'jsonl')
ASK = ('masks', 'score', 'pairs', 'continue')
_FIELD = text(empty=False)
_LENGTH = either(whole(4, MANY), only(0, 'the positions of the model'))
_NORMALIZE = either(flag(), only(None, "the model's own"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelKeys:
    """The keys of every verb that uses a finished model."""

    run: str = key('', _FIELD, 'the verb, see --help')
    init: str = key('', TEXT, "a workdir, a model's directory or `org/name` on the hub; empty: that of `--workdir`")
    step: int = key(0, whole(0, COUNT), 'the checkpoint of a workdir; 0: the export, else the newest')

    dtype = 'float32'  # not a key of `convert`, which computes nothing

    @property
    def options(self) -> Mapping[str, Any]:
        """The keys of the verb, config.VERB."""
        return dataclasses.asdict(getattr(self, next(verb for verb in USING if hasattr(self, verb))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKeys(ModelKeys):
    """The keys of every verb that reads texts."""

    input: str = key('', TEXT, 'a file, or `-` for standard input')
    dtype: str = key(
        'float32', one_of(DTYPES), 'dtype of the computation; `bfloat16` is several times faster on TPUs and GPUs'
    )
    batch_size: int = key(64, ROWS, 'texts per batch')
    max_length: int = key(0, _LENGTH, 'the most tokens of a text, longer ones are cut; 0: the positions of the model')

    def truncation_length(self, config: BertConfig, usual: int) -> int:
        """Returns the length in tokens that texts are cut to; `usual` if config.max_length is 0.

        Raises:
          UserError: The model has fewer positions.
        """
        most = config.max_positions
        if self.max_length > most:
            fix = 'leave it out for the longest'
            raise UserError('config.max_length', str(self.max_length), f'4 to {most}, the positions of the model', fix)
        return self.max_length or usual


@dataclasses.dataclass(frozen=True)
class ConvertKeys:
    """config.convert."""

    formats: str = key('hf', FORMATS, 'folders of `WORKDIR/export`, separated by commas')


@dataclasses.dataclass(frozen=True)
class ExtractKeys:
    """config.extract."""

    field: str = key('text', _FIELD, 'the field of a record that holds the text')
    pair_field: str = key('', TEXT, 'the field with a second text; for lines, any name means two texts a line')
    id: str = key('', TEXT, 'records: the field with an identifier, which is copied to the output')
    layers: tuple = key(
        (-1,), each(whole(-MANY, MANY)), 'hidden states: 0 the embeddings, 1 to L the blocks, -1 the last'
    )
    combine: str = key('mean', one_of(COMBINE), 'how several layers are combined')
    weights: tuple = key((), each(number(-1e6, 1e6)), '`weighted`: one weight per layer')
    pool: str = key(
        'auto',
        one_of(('auto', *POOL)),
        'pooling of the tokens; `auto`: that of a sentence-transformers folder, else `mean`',
    )
    normalize: bool | None = key(None, _NORMALIZE, 'scale to length 1; `None`: if the model of `pool=auto` does so')
    format: str = key('', one_of(('', *FEATURE_FORMATS)), 'empty: `npy`, or JSON lines if `input` is `-`')
    part: int = key(0, whole(0, MANY), 'texts in memory at once; 0: 4096, or 256 with `pool=none`')


@dataclasses.dataclass(frozen=True)
class FillKeys:
    """config.fill."""

    ask: str = key('masks', one_of(ASK), 'the kind of question, which the argument of the recipe sets')
    text: str = key('', TEXT, 'one text instead of `input`; the answer is a table')
    second: str = key('', TEXT, '`pairs`: the text that may follow it')
    field: str = key('text', _FIELD, 'of records: the one with the text')
    pair_field: str = key('pair', _FIELD, '`pairs`, records: the field with the second text')
    top_k: int = key(5, whole(1, 1000), '`masks`: predictions per mask')
    jointly: bool = key(
        False, about='`masks`: fill the masks of a text one by one, the most certain first, each given the ones before'
    )
    tokens: int = key(20, whole(1, MANY), '`continue`: pieces to append')
    temperature: float = key(
        1.0, number(0, 100), '`continue`: temperature of sampling; 0: always the most probable piece'
    )
    sample: int = key(50, whole(1, 1000), '`continue`: the number of most probable pieces to draw from')
    seed: int = key(0, SEED, '`continue`: the seed of sampling')


@dataclasses.dataclass(frozen=True)
class AttentionKeys:
    """config.attention."""

    field: str = key('text', _FIELD, 'of records: the one with the text')
    pair_field: str = key('', TEXT, 'records: the field with a second text, read together with it')
    texts: tuple = key(
        (), each(_FIELD), 'texts (or pairs, separated by a tab) for the page; also measured if there is no `input`'
    )
    show: int = key(12, whole(0, 1000), 'how many of the first texts of `input` are on the page, if `texts` is empty')
    unit: str = key('piece', one_of(('piece', 'word')), 'the unit of the statistics and the page')
    compare: str = key('', TEXT, 'a checkpoint of the same encoder before a fine-tuning')


def _of_verb(base: type[ModelKeys], options: Any) -> type[ModelKeys]:
    """Returns the keys of a verb: those of `base`, and config.VERB, which is named after its class."""
    verb = type(options).__name__.removesuffix('Keys').lower()
    fields = [('run', str, override(ModelKeys, 'run', verb)), (verb, type(options), group(options))]
    return dataclasses.make_dataclass(f'{verb.capitalize()}Settings', fields, bases=(base,), frozen=True, kw_only=True)


# The keys of each verb that uses a finished model.
USING: Mapping[str, type[ModelKeys]] = {
    'convert': _of_verb(ModelKeys, ConvertKeys()),
    'extract': _of_verb(TextKeys, ExtractKeys()),
    'fill': _of_verb(TextKeys, FillKeys()),
    'attention': _of_verb(TextKeys, AttentionKeys()),
}


def using_settings(config: Mapping[str, Any], verb: str) -> ModelKeys:
    """Returns the settings of a config.

    Raises:
      UserError: The recipe is for another verb.
    """
    if verb not in config:
        found, expected = f'a recipe without config.{verb}', 'one that has it'
        raise UserError(f'--config.run={verb}', found, expected, f'give the recipe {verb}')
    return from_config(USING[verb], config)
