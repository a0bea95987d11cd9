"""Reads, encodes and scores minimal pairs of a grammatical and a similar ungrammatical sentence, as in BLiMP."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.inference import MinimalPairsKeys
from bertjax.errors import UserError
from bertjax.metrics.minimal_pairs import pair_accuracies
from bertjax.remote.paths import user_path
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.reading.layout import Column
from bertjax.tasks.reading.records import read_records, select_columns
from bertjax.text.tokenizer import Tokenizer

BLIMP_FIELDS = dataclasses.asdict(MinimalPairsKeys())


@dataclasses.dataclass(frozen=True)
class MinimalPair:
    """A good and a bad sentence.

    `set` and `phenomenon` are the names of the groups that contain the pair; '' if the file has no such groups.
    """

    where: str
    good: str
    bad: str
    set: str
    phenomenon: str
    fields: Mapping[str, Any]


def read_pairs(path: str, key: str, fields: Mapping[str, str] = BLIMP_FIELDS) -> list[MinimalPair]:
    """Reads a file of JSON lines, which may be compressed, or a Parquet or Arrow file.

    Args:
      key: The config key of `path`, for messages.
      fields: {attribute of MinimalPair: field of the records}. If `fields` has the default names, the sentences may
        also be in the fields 'good' and 'bad', and the records may lack the fields for `set` and `phenomenon`.

    Raises:
      UserError: The file does not exist or has no record, or a record is malformed.
    """
    file = user_path(path, key)
    if not path or not file.is_file():
        raise UserError(key, repr(path), 'a file of JSON lines', 'correct the path')
    records = list(read_records([file], 'jsonl'))

    def column(name: str) -> Column:
        field, is_default, is_sentence = fields[name], fields[name] == BLIMP_FIELDS[name], name in ('good', 'bad')
        names = (field, name) if is_default and is_sentence else (field,)
        required = is_sentence or not is_default or field in records[0].fields
        # No key names the fields of config.heldout_pairs.
        return Column(names, required, key='' if fields is BLIMP_FIELDS else f'config.minimal_pairs.{name}')

    rows = select_columns(records, [column(name) for name in BLIMP_FIELDS])
    pairs = [MinimalPair(row.where, *(value or '' for value in row.values), row.fields) for row in rows]
    for pair, name in itertools.product(pairs, ('good', 'bad')):
        if not getattr(pair, name).strip():
            field = fields[name] if fields[name] in pair.fields else name
            raise UserError(pair.where, f'an empty text in {field!r}', 'two sentences', 'correct the record')
    return pairs


def encode_pairs(pairs: Sequence[MinimalPair], tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Returns the token ids of `[CLS] sentence [SEP]`, int32 [S], for each sentence. Good and bad sentences alternate.

    Sentences are not truncated, because a pair may differ in its last words.

    Raises:
      UserError: A sequence has more than `max_length` tokens, or a sentence has no tokens.
    """
    sentences = tokenizer.encode([sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    for number, ids in enumerate(sentences):
        where = pairs[number // 2].where
        if len(ids) + 2 > max_length:
            expected = f'at most {max_length}, the number of positions of the model'
            raise UserError(where, f'a sentence of {len(ids) + 2} tokens', expected, 'remove or shorten the pair')
        if not len(ids):
            raise UserError(where, 'a sentence without tokens', 'two sentences', 'correct or remove the record')
    return [add_special_tokens(ids, tokenizer) for ids in sentences]


def deduplicate(sequences: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the distinct sequences, and for each of the N sequences its index among them, int64 [N].

    A model that scores only these gives equal sequences exactly equal scores, so that their pair is a tie.
    """
    distinct: dict[bytes, int] = {}
    index = np.array([distinct.setdefault(ids.tobytes(), len(distinct)) for ids in sequences], np.int64)
    return [np.frombuffer(ids, np.int32) for ids in distinct], index


def accuracies(pairs: Sequence[MinimalPair], log_likelihoods: np.ndarray) -> dict[str, Any]:
    """Returns the results of `pair_accuracies`, and the counts `pairs` (N) and `ties`. A tie counts as wrong.

    `log_likelihoods` are the scores of the good and the bad sentences, float64 [N, 2].
    """
    good, bad = log_likelihoods.T
    figures = pair_accuracies(good > bad, [pair.set for pair in pairs], [pair.phenomenon for pair in pairs])
    return {'pairs': len(pairs), 'ties': int((good == bad).sum()), **figures}
