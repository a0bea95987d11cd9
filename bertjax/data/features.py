"""The tokenized sequences of a task. They are stored ragged, padded batch by batch, and cached on disk."""

import contextlib
import dataclasses
import hashlib
import io
import pathlib
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertjax.corpus.quality import UNKNOWN
from bertjax.data.batch import BatchSpec, ordinals
from bertjax.files.atomic import write_atomic
from bertjax.text.tokenizer_base import Tokenizer

_TOKEN = 'token_'  # the name prefix of arrays with one value for each token
INPUTS = ('input_ids', 'segment_ids', 'attention_mask')  # the inputs of every model, int32 [B, S] or [B, C, S] each
FEATURES_VERSION = 7  # a part of the cache key; increase it whenever a code change alters the rows of the same records


@dataclasses.dataclass(frozen=True)
class Features:
    """N sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, which form N/C rows.

    A row consists of `choices` = C consecutive sequences, usually 1. A record of the task may have several rows, such
    as the windows of a long text.

    Attributes:
      tokens: int32 [T], the concatenated sequences.
      offsets: int64 [N + 1], the index of each sequence's first token; the last entry is T.
      second: int32 [N], the position in each sequence where segment 1 begins, or the length of the sequence if it has
        no segment 1.
      record: int32 [N/C], the index of the record that each row comes from; ascending unless `take` reorders the rows.
      row: {name: [N/C, ...]}, the arrays with one value for each row, such as int32 `labels`. `FeatureBuilder` always
        adds `weights` (float32), the weight of each row in the loss.
      token: {name: [T]}, the arrays with one value for each token, such as int32 `token_labels`. The names begin with
        `token_`.
      choices: C.
      notes: Lines for the user about the conversion of the records; not part of the fingerprint.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    second: np.ndarray
    record: np.ndarray
    row: Mapping[str, np.ndarray]
    token: Mapping[str, np.ndarray]
    choices: int = 1
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.record)

    @property
    def sequence_lengths(self) -> np.ndarray:
        """The length of each sequence, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def lengths_of_choices(self) -> np.ndarray:
        """The lengths of the sequences of each row, int64 [N/C, C]."""
        return self.sequence_lengths.reshape(-1, self.choices)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row's longest sequence, int64 [N/C]."""
        return self.lengths_of_choices.max(1)

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of C and all arrays."""
        digest = hashlib.sha256(str(self.choices).encode())
        for name, x in sorted(self._arrays().items()):
            digest.update(f'{name} {x.dtype} {x.shape}'.encode())
            digest.update(np.ascontiguousarray(x))
        return digest.hexdigest()

    def unknown_counts(self, tokenizer: Tokenizer) -> np.ndarray:
        """Counts records, pieces, [UNK], and records with no other piece, int64 [4]. [CLS] and [SEP] do not count."""
        record = np.repeat(self.record, self.choices)

        def count(*ids: int) -> np.ndarray:  # in each record
            at = np.flatnonzero(np.isin(self.tokens, ids))
            sequences = np.searchsorted(self.offsets, at, 'right') - 1
            return np.bincount(record[sequences], minlength=record.max(initial=-1) + 1)

        lengths = np.bincount(record, self.sequence_lengths)
        ignored = {tokenizer.cls_id, tokenizer.sep_id}
        # In some vocabularies [UNK] is the same piece as [SEP].
        pieces, unknown = lengths - count(*ignored), count(*{tokenizer.unk_id} - ignored)
        only = (pieces == unknown) & (unknown > 0)
        return np.array([len(np.unique(self.record)), pieces.sum(), unknown.sum(), only.sum()], np.int64)

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {'tokens': self.tokens, 'offsets': self.offsets, 'second': self.second, 'record': self.record}
        arrays |= {f'row/{name}': x for name, x in self.row.items()}
        return arrays | {f'token/{name}': x for name, x in self.token.items()}

    def spec(self, rows: int, length: int) -> BatchSpec:
        """Returns the shape and dtype of each array of a batch of `rows` rows, padded to S = `length`."""
        shape = (rows, self.choices, length) if self.choices > 1 else (rows, length)
        ids = {name: (shape, np.dtype(np.int32)) for name in INPUTS}
        tokens = {name: (shape, x.dtype) for name, x in self.token.items()}
        return {**ids, **tokens, **{name: ((rows, *x.shape[1:]), x.dtype) for name, x in self.row.items()}}

    def batch(self, rows: np.ndarray, length: int, pad_id: int) -> dict[str, np.ndarray]:
        """Returns the batch of the given rows, padded to S = `length`.

        `rows` is int64 [B]. The index -1 stands for an empty row, which has only padding and weight 0. No row may be
        longer than S. The row arrays of the batch are [B, ...]. INPUTS and the token arrays are [B, S], or [B, C, S] if
        C > 1.
        """
        B, C = len(rows), self.choices
        real = rows >= 0
        sequences = (np.maximum(rows, 0)[:, None] * C + np.arange(C)).reshape(-1)  # [B·C]
        columns = np.arange(length)
        inside = columns < self.sequence_lengths[sequences][:, None]  # [B·C, S]
        inside &= np.repeat(real, C)[:, None]
        token_index = np.where(inside, self.offsets[sequences][:, None] + columns, 0)
        shape = (B, C, length) if C > 1 else (B, length)
        batch = {
            'input_ids': np.where(inside, self.tokens[token_index], np.int32(pad_id)),
            'segment_ids': (inside & (columns >= self.second[sequences][:, None])).astype(np.int32),
            'attention_mask': inside.astype(np.int32),
            **{name: np.where(inside, x[token_index], x.dtype.type(0)) for name, x in self.token.items()},
        }
        batch = {name: x.reshape(shape) for name, x in batch.items()}
        for name, x in self.row.items():
            values = x[np.maximum(rows, 0)]
            batch[name] = np.where(real.reshape(-1, *[1] * (values.ndim - 1)), values, x.dtype.type(0))
        return batch

    def take(self, rows: np.ndarray) -> 'Features':
        """Returns the rows with the indices `rows`, int64 [B], in this order. An index may repeat."""
        sequences = (rows[:, None] * self.choices + np.arange(self.choices)).reshape(-1)
        lengths = self.sequence_lengths[sequences]
        token_index = ordinals(lengths) + np.repeat(self.offsets[sequences], lengths)
        return dataclasses.replace(
            self,
            tokens=self.tokens[token_index],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            second=self.second[sequences],
            record=self.record[rows],
            row={name: x[rows] for name, x in self.row.items()},
            token={name: x[token_index] for name, x in self.token.items()},
        )

    def save(self, path: pathlib.Path) -> None:
        """Writes the features to an .npz file atomically."""
        buffer = io.BytesIO()
        notes = np.array(self.notes, np.str_)
        np.savez(buffer, choices=np.int32(self.choices), notes=notes, **self._arrays())
        write_atomic(path, buffer.getvalue())

    @staticmethod
    def load(path: pathlib.Path) -> 'Features':
        """Reads a file that `save` wrote.

        Raises:
          OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile: The file is damaged.
        """
        with np.load(path) as file:
            arrays = dict(file)
        parts: dict[str, dict[str, np.ndarray]] = {'row': {}, 'token': {}}
        for name in [name for name in arrays if '/' in name]:
            kind, _, rest = name.partition('/')
            parts[kind][rest] = arrays.pop(name)
        choices, notes = int(arrays.pop('choices')), tuple(arrays.pop('notes').tolist())
        return Features(choices=choices, notes=notes, **arrays, **parts)


class FeatureBuilder:
    """A builder of `Features` that collects sequences one by one."""

    def __init__(self, choices: int = 1):
        self.choices = choices
        self._tokens: list[np.ndarray] = []
        self._second: list[int] = []
        self._record: list[int] = []
        self._row: dict[str, list] = {}
        self._token: dict[str, list[np.ndarray]] = {}

    def add_sequence(self, tokens: Sequence[int], second: int | None = None, **token: np.ndarray) -> None:
        """Adds a sequence. `tokens` includes the special tokens. Segment 1, if there is one, begins at `second`."""
        self._tokens.append(np.asarray(tokens, np.int32))
        self._second.append(len(tokens) if second is None else second)
        for name, values in token.items():
            if not name.startswith(_TOKEN) or len(values) != len(tokens):
                raise ValueError(f'{name} with {len(values)} values for {len(tokens)} tokens')
            self._token.setdefault(name, []).append(np.asarray(values))

    def add_row(self, record: int, **values: np.ndarray | float | int) -> None:
        """Makes a row from the sequences that were added since the last row. `weights` is 1 by default."""
        self._record.append(record)
        for name, value in {'weights': np.float32(1), **values}.items():
            self._row.setdefault(name, []).append(value)

    def build(self, notes: Sequence[str] = ()) -> Features:
        """Returns the features of all rows. At least one row is required."""
        lengths = [len(tokens) for tokens in self._tokens]
        if len(lengths) != len(self._record) * self.choices:
            raise ValueError(f'{len(lengths)} sequences for {len(self._record)} rows of {self.choices}')
        return Features(
            tokens=np.concatenate(self._tokens),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            second=np.asarray(self._second, np.int32),
            record=np.asarray(self._record, np.int32),
            row={name: np.stack([np.asarray(value) for value in values]) for name, values in self._row.items()},
            token={name: np.concatenate(values) for name, values in self._token.items()},
            choices=self.choices,
            notes=tuple(notes),
        )


def describe_unknown_pieces(counts: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Returns [note] if the share of [UNK] in a sum of `Features.unknown_counts` is above UNKNOWN, else []."""
    records, pieces, unknown, only = counts.tolist()
    if unknown <= UNKNOWN * pieces:
        return []
    fix = 'use a model whose vocabulary covers these texts'
    if tokenizer.family == 'symbols':
        fix = 'separate symbols by spaces, and use only symbols of the vocabulary'
    return [
        f'{unknown / pieces:.1%} of the pieces are [UNK], and {only:,} of {records:,} records are only [UNK]: {fix}'
    ]


def masked_copies(sequences: Sequence[np.ndarray], mask_id: int) -> Features:
    """Builds copies of sequences with one masked token: one copy for each token except [CLS] and [SEP].

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP]; at least one has S > 2.
      mask_id: The id of [MASK].

    Returns:
      The copies, in the order of the sequences and of their tokens. `record` is the index of the sequence. The row
      arrays `masked_positions` and `masked_ids`, int32 [rows, 1], are the position of [MASK] and the id that it
      replaces.
    """
    builder = FeatureBuilder()
    for number, ids in enumerate(sequences):
        builder.add_sequence(ids)
        builder.add_row(number)
    counts = np.array([max(len(ids) - 2, 0) for ids in sequences])
    copies, positions = builder.build().take(np.repeat(np.arange(len(counts)), counts)), 1 + ordinals(counts)
    masked = copies.offsets[:-1] + positions
    masked_ids = copies.tokens[masked]
    copies.tokens[masked] = mask_id
    masks = {'masked_positions': positions[:, None], 'masked_ids': masked_ids[:, None]}
    return dataclasses.replace(copies, row={**copies.row, **masks})


def load_or_build(folder: pathlib.Path, key: object, make: Callable[[], Features]) -> Features:
    """Loads the features of `key` from `folder`, or calls `make` and saves its result there.

    The repr of `key` must determine the features, because the file name is a hash of the repr and FEATURES_VERSION.
    """
    with np.printoptions(threshold=sys.maxsize, floatmode='unique'):  # else the repr of a long array lacks values
        name = hashlib.sha256(repr((FEATURES_VERSION, key)).encode()).hexdigest()[:32]
    path = folder / f'{name}.npz'
    damages = (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile)
    with contextlib.suppress(*damages):  # a file that is absent or damaged is written again
        return Features.load(path)
    features = make()
    features.save(path)
    return features
