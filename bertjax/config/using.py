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
    step: int = key(0, whole(0, COUNT), 'of a workdir: which checkpoint; 0: what was exported, else the newest')

    dtype = 'float32'  # no key of `convert`, which computes nothing

    @property
    def options(self) -> Mapping[str, Any]:
        """The keys of the verb, config.VERB."""
        return dataclasses.asdict(getattr(self, next(verb for verb in USING if hasattr(self, verb))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKeys(ModelKeys):
    """The keys of every verb that reads texts."""

    input: str = key('', TEXT, 'a file, or `-` for standard input')
    dtype: str = key('float32', one_of(DTYPES), 'of computation; `bfloat16` is several times faster on TPUs and GPUs')
    batch_size: int = key(64, ROWS, 'texts at a time')
    max_length: int = key(0, _LENGTH, 'longer texts are cut to so many tokens; 0: the positions of the model')

    def truncation_length(self, config: BertConfig, usual: int) -> int:
        """Tokens that a text of a model is cut to; `usual` where config.max_length does not say.

        Raises:
          UserError: more than it has positions.
        """
        most = config.max_positions
        if self.max_length > most:
            fix = 'leave it out for the longest'
            raise UserError('config.max_length', str(self.max_length), f'4 to {most}, the positions of the model', fix)
        return self.max_length or usual


@dataclasses.dataclass(frozen=True)
class Convert:
    """config.convert."""

    formats: str = key('hf', FORMATS, 'folders of `WORKDIR/export`, with commas between')


@dataclasses.dataclass(frozen=True)
class Extract:
    """config.extract."""

    field: str = key('text', _FIELD, 'of records: the one with the text')
    pair_field: str = key('', TEXT, 'of records: the one with a second text; of lines, any name: two texts a line')
    id: str = key('', TEXT, 'of records: the one that names it, kept beside the features')
    layers: tuple = key(
        (-1,), each(whole(-MANY, MANY)), 'hidden states: 0 the embeddings, 1 to L the blocks, -1 the last'
    )
    combine: str = key('mean', one_of(COMBINE), 'of several layers')
    weights: tuple = key((), each(number(-1e6, 1e6)), 'of `weighted`: one a layer')
    pool: str = key(
        'auto', one_of(('auto', *POOL)), "a text's tokens; `auto`: as sentence-transformers' folder, else `mean`"
    )
    normalize: bool | None = key(None, _NORMALIZE, 'to length 1; `None`: where `pool=auto` finds it')
    format: str = key(
        '', one_of(('', *FEATURE_FORMATS)), 'empty: `npy`; of standard input JSON lines on standard output'
    )
    part: int = key(0, whole(0, MANY), 'texts computed and kept at once; 0: 4096, with `pool=none` 256')


@dataclasses.dataclass(frozen=True)
class Fill:
    """config.fill."""

    ask: str = key('masks', one_of(ASK), 'what is asked: the argument of the recipe')
    text: str = key('', TEXT, 'one text, in place of `input`: the answer is a table')
    second: str = key('', TEXT, 'of `pairs`: the text that may follow it')
    field: str = key('text', _FIELD, 'of records: the one with the text')
    pair_field: str = key('pair', _FIELD, 'of records, of `pairs`: the one with the second text')
    top_k: int = key(5, whole(1, 1000), 'of `masks`: fillings for each')
    jointly: bool = key(False, about='of `masks`: fill all of a text, the surest first, and look again after each')
    tokens: int = key(20, whole(1, MANY), 'of `continue`: pieces to append')
    temperature: float = key(1.0, number(0, 100), 'of `continue`; 0: always the most probable piece')
    sample: int = key(50, whole(1, 1000), 'of `continue`: the most probable pieces, which are drawn among')
    seed: int = key(0, SEED, 'of `continue`')


@dataclasses.dataclass(frozen=True)
class Attention:
    """config.attention."""

    field: str = key('text', _FIELD, 'of records: the one with the text')
    pair_field: str = key('', TEXT, 'of records: the one with a second text, read together with it')
    texts: tuple = key((), each(_FIELD), 'texts (or pairs, with a tab between) for the page, measured without `input`')
    show: int = key(12, whole(0, 1000), 'without `texts`: so many of the first of `input` are on the page')
    unit: str = key('piece', one_of(('piece', 'word')), 'what statistics and page are about')
    compare: str = key('', TEXT, 'a checkpoint of the same encoder before a fine-tuning')


def _of_verb(base: type[ModelKeys], options: Any) -> type[ModelKeys]:
    """The keys of a verb: those of `base`, and config.VERB, which is named after its class."""
    verb = type(options).__name__.lower()
    fields = [('run', str, override(ModelKeys, 'run', verb)), (verb, type(options), group(options))]
    return dataclasses.make_dataclass(f'{type(options).__name__}Keys', fields, bases=(base,), frozen=True, kw_only=True)


# The keys of each verb that uses a finished model.
USING: Mapping[str, type[ModelKeys]] = {
    'convert': _of_verb(ModelKeys, Convert()),
    'extract': _of_verb(TextKeys, Extract()),
    'fill': _of_verb(TextKeys, Fill()),
    'attention': _of_verb(TextKeys, Attention()),
}


def using_settings(config: Mapping[str, Any], verb: str) -> ModelKeys:
    """The settings of a config.

    Raises:
      UserError: the recipe of another verb.
    """
    if verb not in config:
        found, expected = f'a recipe without config.{verb}', 'one that has it'
        raise UserError(f'--config.run={verb}', found, expected, f'give the recipe {verb}')
    return from_config(USING[verb], config)
