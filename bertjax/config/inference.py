"""The keys of the verbs that use a finished model: convert, extract, fill, minimal_pairs, attention, mine_negatives."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config.ranges import COUNT, FLAG, MANY, either, integer, list_of, number, one_of, special, text
from bertjax.config.run import FORMATS, ROWS, SEED, TEXT
from bertjax.config.schema import from_config, group, key, keys_of, override
from bertjax.errors import UserError
from bertjax.model.config import DTYPES
from bertjax.model.pooling import COMBINE, POOL
from bertjax.model.quantization import PRECISIONS

FEATURE_FORMATS = ('npy', 'safetensors', 'parquet', 'jsonl')
ASK = ('masks', 'score', 'pairs', 'continue')
_FIELD = text(empty=False)
_PAIRS, _MASKS, _CONTINUE = ('ask', 'pairs'), ('ask', 'masks'), ('ask', 'continue')  # see `used_with` in schema.Key
_LENGTH = either(integer(4, MANY), special(0, "the model's default"))
_MARGIN = either(number(0, 2), special(None, 'no margin'))
_PROMPT = either(TEXT, special(None, "the model's default"))
_NORMALIZE = either(FLAG, special(None, "the model's setting"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelKeys:
    """The keys of every verb that uses a finished model."""

    run: str = key('', _FIELD, 'the verb, see --help')
    init: str = key('', TEXT, "a workdir, a model's directory or `org/name` on the hub; empty: that of `--workdir`")
    step: int = key(0, integer(0, COUNT), 'the step of a checkpoint; 0: the export if any, else the newest or best')

    dtype = 'float32'  # the dtype of `convert`, which lacks this key


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputKeys(ModelKeys):
    """The keys of every verb that computes on an input file."""

    input: str = key('', TEXT, 'a file, or `-` for standard input')
    dtype: str = key('float32', one_of(DTYPES), 'the dtype of the computation; `bfloat16` is faster on TPUs and GPUs')
    batch_size: int = key(64, ROWS, 'the number of texts per batch')

    max_length = 0  # not a key: `load_runner` reads it for `minimal_pairs`, which does not truncate


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKeys(InputKeys):
    """The keys of every verb that truncates long texts."""

    max_length: int = key(0, _LENGTH, 'the maximal number of tokens of a text; longer texts are cut')


@dataclasses.dataclass(frozen=True)
class ConvertKeys:
    """The group config.convert."""

    formats: str = key('hf', FORMATS, 'the formats, separated by commas; each is a folder in `WORKDIR/export`')


@dataclasses.dataclass(frozen=True)
class ExtractKeys:
    """The group config.extract."""

    field: str = key('text', _FIELD, 'records: the field with the text')
    pair_field: str = key('', TEXT, 'the field with the second text; if set, a tab splits plain lines in two')
    id: str = key('', TEXT, 'records: the field with an identifier, which is copied to the output')
    layers: tuple = key(
        (-1,), list_of(integer(-MANY, MANY)), 'the layers; 0: the embeddings, 1: the first block, -1: the last block'
    )
    combine: str = key('mean', one_of(COMBINE), 'how several layers are combined')
    weights: tuple = key((), list_of(number(-1e6, 1e6)), '`combine=weighted`: one weight per layer')
    pool: str = key('auto', one_of(('auto', *POOL)), "`auto`: the model's own (sentence-transformers), else `mean`")
    normalize: bool | None = key(
        None, _NORMALIZE, "whether to scale vectors to length 1; `None`: the model's setting if `pool=auto`, else no"
    )
    prompt: str | None = key(None, _PROMPT, "a prompt's name, such as `query`, or a prefix of every text")
    truncate_dim: int = key(
        0, integer(0, MANY), "keep this many dimensions before scaling; 0: the model's default if `pool=auto`, else all"
    )
    precision: str = key('float32', one_of(PRECISIONS), '`npy`: the precision of a dimension; `binary` is one bit')
    calibration: str = key(
        '',
        TEXT,
        '`int8`: a `.npy` file whose vectors give the ranges; empty: the vectors of this run',
        used_with=('precision', 'int8'),
    )
    format: str = key('', one_of(('', *FEATURE_FORMATS)), 'the format; empty: `npy`, or JSON lines if `input` is `-`')
    part: int = key(0, integer(0, MANY), 'the number of texts in memory at once; 0: 4096, or 256 with `pool=none`')
    shard: int = key(0, integer(0, COUNT), '`npy`: the number of texts per file of the output; 0: a single file')


@dataclasses.dataclass(frozen=True)
class FillKeys:
    """The group config.fill."""

    ask: str = key('masks', one_of(ASK), 'the kind of question; the argument of the recipe sets this key')
    text: str = key('', TEXT, 'a single text instead of `input`; the answer is printed as a table')
    second: str = key('', TEXT, '`pairs`: the text that may follow `text`', used_with=_PAIRS)
    field: str = key('text', _FIELD, 'records: the field with the text', used_with=('text', ''))
    pair_field: str = key('pair', _FIELD, '`pairs`: the field with the second text', used_with=('second', ''))
    top_k: int = key(5, integer(1, 1000), '`masks`: the number of predictions per mask', used_with=('jointly', False))
    jointly: bool = key(False, about='`masks`: fill one mask at a time, the most certain first', used_with=_MASKS)
    tokens: int = key(20, integer(1, MANY), '`continue`: the number of pieces to append', used_with=_CONTINUE)
    temperature: float = key(
        1.0, number(0, 100), '`continue`: the temperature; 0: the most probable piece', used_with=_CONTINUE
    )
    sample: int = key(50, integer(1, 1000), '`continue`: sample from this many best pieces', used_with=('temperature',))
    seed: int = key(0, SEED, '`continue`: the seed of sampling', used_with=('temperature',))


@dataclasses.dataclass(frozen=True)
class MinimalPairsKeys:
    """The group config.minimal_pairs: the names of the fields of a record. The defaults are the names in BLiMP."""

    good: str = key('sentence_good', _FIELD, 'the field with the good sentence')
    bad: str = key('sentence_bad', _FIELD, 'the field with the bad sentence')
    set: str = key('UID', _FIELD, 'the field with the name of a set of pairs; all sets have equal weight')
    phenomenon: str = key('linguistics_term', _FIELD, "the field with the name of the set's group")


@dataclasses.dataclass(frozen=True)
class MineNegativesKeys:
    """The group config.mine_negatives. `range_min` and `range_max` do not count the anchor and its positives."""

    anchor: str = key('anchor', _FIELD, 'the field with the anchor of a pair')
    positive: str = key('positive', _FIELD, 'the field with the positive of a pair')
    negative: str = key('negative', _FIELD, 'the field of known negatives (added to the corpus) and of mined ones')
    corpus: str = key('', TEXT, 'a file of further texts to choose negatives from')
    field: str = key('text', _FIELD, 'the field of a record of `corpus` that holds the text')
    num_negatives: int = key(3, integer(1, 1000), 'the maximal number of negatives per pair, most similar first')
    range_min: int = key(0, integer(0, MANY), 'the number of most similar texts to skip')
    range_max: int = key(100, integer(1, MANY), 'choose from this many most similar texts, including the skipped ones')
    absolute_margin: float | None = key(None, _MARGIN, "the minimal value of the positive's score minus the negative's")
    relative_margin: float | None = key(
        None, _MARGIN, '`absolute_margin` as a fraction of the score of the positive, such as 0.05 (arXiv 2407.15831)'
    )


@dataclasses.dataclass(frozen=True)
class AttentionKeys:
    """The group config.attention."""

    field: str = key('text', _FIELD, 'records: the field with the text')
    pair_field: str = key('', TEXT, 'records: the field with the second text of a pair')
    texts: tuple = key(
        (), list_of(_FIELD), 'the texts on the page; a tab makes a pair; without `input`, also for the statistics'
    )
    show: int = key(
        12,
        integer(0, 1000),
        'without `texts`, the number of texts on the page, from the start of `input`',
        used_with=('texts', []),
    )
    unit: str = key('piece', one_of(('piece', 'word')), 'the unit of the statistics and the page')
    compare: str = key('', TEXT, 'a model to compare with: the same encoder before its fine-tuning')


def _of_verb(verb: str, base: type[ModelKeys], options: Any, input: str = '') -> type[ModelKeys]:
    """Returns a class with the keys of `base` and the group config.VERB. `input` describes config.input."""
    fields = [('run', str, override(ModelKeys, 'run', verb)), (verb, type(options), group(options))]
    if input:
        fields.append(('input', str, override(base, 'input', about=input)))
    name = type(options).__name__.replace('Keys', 'Settings')
    return dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, kw_only=True)


# {a verb that uses a finished model: the class of its keys}.
INFERENCE_KEYS: Mapping[str, type[ModelKeys]] = {
    verb: _of_verb(verb, *arguments)
    for verb, *arguments in (
        ('convert', ModelKeys, ConvertKeys()),
        ('extract', TextKeys, ExtractKeys()),
        ('fill', TextKeys, FillKeys()),
        ('minimal_pairs', InputKeys, MinimalPairsKeys(), 'a file of records, each with a good and a bad sentence'),
        ('attention', TextKeys, AttentionKeys()),
        ('mine_negatives', TextKeys, MineNegativesKeys(), 'a file of pairs, a SQuAD file or a BEIR folder'),
    )
}


def inference_settings(config: Mapping[str, Any], verb: str) -> ModelKeys:
    """Returns the settings of a verb that uses a finished model."""
    return from_config(INFERENCE_KEYS[verb], config)


@contextlib.contextmanager
def name_keys(verb: str) -> Iterator[None]:
    """Changes a UserError about the argument NAME of a function into one about the key config.VERB.NAME."""
    try:
        yield
    except UserError as error:
        if f'{verb}.{error.where}' not in keys_of(INFERENCE_KEYS[verb]):
            raise
        raise UserError(f'config.{verb}.{error.where}', error.found, error.expected, error.fix) from None
