"""Reads, encodes and scores minimal pairs of a grammatical and a similar ungrammatical sentence, as in BLiMP."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.inference import MinimalPairsKeys
from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.remote.paths import user_path
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.reading.layout import Column
from bertjax.tasks.reading.records import FORMATS, read_records, select_columns
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
    """Reads a file of records in a format of `read_records`; a file with another suffix has JSON lines.

    Args:
      key: The config key of `path`, for messages.
      fields: {attribute of MinimalPair: field of the records}. With its default field, `good` may also be in the field
        'good', `bad` in the field 'bad', and all records may lack the field of `set` or of `phenomenon`.

    Raises:
      UserError: The file does not exist or has no record, a record is malformed, only some records have a set or a
        phenomenon, or a set is in two phenomena.
    """
    file = user_path(path, key)
    if not path or not file.is_file():
        raise UserError(key, repr(path), 'a file of pairs', 'correct the path')
    by_suffix = bare_suffix(file.name) in {*FORMATS, '.xlsx', '.xls', '.ods'}  # `read_records` refuses spreadsheets
    records = read_records([file], '' if by_suffix else 'jsonl')

    def column(name: str) -> Column:
        field, is_default, is_sentence = fields[name], fields[name] == BLIMP_FIELDS[name], name in ('good', 'bad')
        names = (field, name) if is_default and is_sentence else (field,)
        # No key names the fields of config.heldout_pairs.
        key = '' if fields is BLIMP_FIELDS else f'config.minimal_pairs.{name}'
        return Column(names, required=is_sentence or not is_default, key=key)

    rows = select_columns(records, [column(name) for name in BLIMP_FIELDS])
    pairs = []
    for row in rows:
        good, bad, *groups = (value or '' for value in row.values)
        pairs.append(MinimalPair(row.where, good, bad, *map(str.strip, groups), row.fields))
    for pair, name in itertools.product(pairs, ('good', 'bad')):
        if not getattr(pair, name).strip():
            field = fields[name] if fields[name] in pair.fields else name
            raise UserError(pair.where, f'an empty text in {field!r}', 'two sentences', 'correct the record')
    for name in ('set', 'phenomenon'):
        unnamed = [pair for pair in pairs if not getattr(pair, name)]
        if 0 < len(unnamed) < len(pairs):
            found, expected = f'no name in {fields[name]!r}', 'a name in every record, or in none'
            raise UserError(unnamed[0].where, found, expected, 'correct the record')
    first_of_set: dict[str, MinimalPair] = {}
    for pair in pairs:
        first = first_of_set.setdefault(pair.set, pair)
        if pair.set and pair.phenomenon != first.phenomenon:
            found = f'{pair.phenomenon!r} for the set {pair.set!r}'
            expected = f'{first.phenomenon!r}, as in {first.where}'
            raise UserError(pair.where, found, expected, 'correct the record, or rename the set')
    return pairs


def encode_pairs(pairs: Sequence[MinimalPair], tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Returns the token ids of `[CLS] sentence [SEP]`, int32 [S], for each sentence. Good and bad sentences alternate.

    Sentences are not truncated, because the sentences of a pair may differ only in the last words.

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

    If only the distinct sequences are scored, a pair of equal sequences has two equal scores and is a tie.
    """
    distinct: dict[bytes, int] = {}
    index = np.array([distinct.setdefault(ids.tobytes(), len(distinct)) for ids in sequences], np.int64)
    return [np.frombuffer(ids, np.int32) for ids in distinct], index


def accuracies(pairs: Sequence[MinimalPair], log_likelihoods: np.ndarray) -> dict[str, Any]:
    """Computes the accuracies on N > 0 pairs, as BLiMP reports them (Warstadt et al. 2020, arXiv 1912.00582).

    A pair is correct if the good sentence has the higher score; a tie is not correct. The accuracy p of a set is the
    fraction of correct pairs among its n pairs. Its standard error is the binomial √(p (1 - p) / n). The accuracy of a
    phenomenon is the mean over its sets, and `accuracy` is the mean over all sets. The standard error of a mean over K
    sets is √(Σ s_k²) / K, where s_k is the standard error of set k. This formula treats the pairs of a set as a random
    sample, and the sets as fixed.

    Args:
      log_likelihoods: The scores of the good and the bad sentences, float64 [N, 2].

    Returns:
      A dict with the counts `pairs` and `ties`; `accuracy` and `standard_error`; `share`, the fraction of correct pairs
      among all pairs, with `share_standard_error`; and `phenomena` and `sets`, which map each name to `pairs`,
      `accuracy` and `standard_error`, in the order of their first pairs.
    """
    good, bad = log_likelihoods.T
    correct, sets = good > bad, np.array([pair.set for pair in pairs])
    share, phenomena = _share(correct), np.array([pair.phenomenon for pair in pairs])
    return {
        'pairs': len(pairs),
        'ties': int((good == bad).sum()),
        **_mean(correct, sets),
        'share': share['accuracy'],
        'share_standard_error': share['standard_error'],
        'phenomena': {name: _mean(correct[mask], sets[mask]) for name, mask in _groups(phenomena)},
        'sets': {name: _share(correct[mask]) for name, mask in _groups(sets)},
    }


def _groups(names: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each name and the mask of its pairs, bool [N]."""
    return ((name, names == name) for name in dict.fromkeys(names.tolist()))


def _share(correct: np.ndarray) -> dict[str, Any]:
    p, n = float(correct.mean()), len(correct)
    return {'pairs': n, 'accuracy': p, 'standard_error': math.sqrt(p * (1 - p) / n)}


def _mean(correct: np.ndarray, sets: np.ndarray) -> dict[str, Any]:
    shares = [_share(correct[mask]) for _, mask in _groups(sets)]
    return {
        'pairs': len(correct),
        'accuracy': float(np.mean([share['accuracy'] for share in shares])),
        'standard_error': math.hypot(*(share['standard_error'] for share in shares)) / len(shares),
    }
