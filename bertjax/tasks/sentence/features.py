"""Texts and pairs of texts as sequences of at most S tokens, and how longer ones are handled."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.truncation import longest_first
from bertjax.text.tokenizer import Tokenizer

# How texts that are too long are handled: values of config.task.long, and what happens to the text.
LONG = {'truncate': 'lose their end', 'head_tail': 'lose their middle', 'windows': 'are read in windows'}
# Share of the kept tokens of a long text that are its first: 128 of 510 (Sun et al. 2019, "How to Fine-Tune BERT for
# Text Classification?", arXiv 1905.05583, "Dealing with long texts").
_HEAD = 128 / 510

Pair = tuple[np.ndarray, np.ndarray]
_NOTHING = np.zeros(0, np.int32)


def text_features(
    first: Sequence[str],
    second: Sequence[str] | None,
    labels: np.ndarray | None,
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    long: str,
    stride: int,
) -> Features:
    """`[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` of N records; two [SEP] after A where the tokenizer has it so.

    Args:
      first: N texts.
      second: N texts, or None where there are no pairs.
      labels: int32 or float32 [N], or None; they become `labels` of the rows.
      tokenizer: of the model.
      seq_len: S.
      long: how longer texts are handled. 'truncate': the end is cut off; of a pair, that of the longer text, or of both
        if both exceed half of the room (as transformers does). 'head_tail': the longer text loses its middle; a quarter
        of what is kept is its beginning, the rest its end. 'windows': the longer text is cut into overlapping windows,
        each a row with an equal share of the record's weight. In the last two the shorter text keeps at most half of
        the room.
      stride: tokens from one window to the next; 0 for half a window.
    """
    room = seq_len - (2 if second is None else 2 + tokenizer.separators)
    left = tokenizer.encode(first)
    right = [_NOTHING] * len(left) if second is None else tokenizer.encode(second)
    cls, sep = np.int32([tokenizer.cls_id]), np.int32([tokenizer.sep_id])
    between = np.repeat(sep, tokenizer.separators)
    builder = FeatureBuilder()
    long_ones = sum(len(a) + len(b) > room for a, b in zip(left, right, strict=True))
    for record, (a, b) in enumerate(zip(left, right, strict=True)):
        parts = list(_parts(a, b, room, long, stride))
        values = {} if labels is None else {'labels': labels[record]}
        for a, b in parts:
            if second is None:
                builder.add_sequence(np.concatenate([cls, a, sep]))
            else:
                builder.add_sequence(np.concatenate([cls, a, between, b, sep]), 1 + len(a) + len(between))
            builder.add_row(record, weights=np.float32(1 / len(parts)), **values)
    note = f'{long_ones:,} of {len(left):,} records are longer than config.seq_len={seq_len} and {LONG[long]}'
    return builder.build(notes=[note] if long_ones else [])


def _parts(a: np.ndarray, b: np.ndarray, room: int, long: str, stride: int) -> Iterator[Pair]:
    """The parts of a pair that go into each of its rows."""
    if len(a) + len(b) <= room:
        yield a, b
        return
    if long == 'truncate':
        n, m = longest_first(len(a), len(b), room)
        yield a[:n], b[:m]
        return
    swap = len(b) > len(a)
    longer, shorter = (b, a) if swap else (a, b)
    shorter = shorter[: room // 2]
    width = room - len(shorter)
    for part in _windows(longer, width, stride) if long == 'windows' else [_head_tail(longer, width)]:
        yield (shorter, part) if swap else (part, shorter)


def _head_tail(tokens: np.ndarray, width: int) -> np.ndarray:
    if len(tokens) <= width:
        return tokens
    head = round(width * _HEAD)
    return np.concatenate([tokens[:head], tokens[len(tokens) - (width - head) :]])


def _windows(tokens: np.ndarray, width: int, stride: int) -> list[np.ndarray]:
    """Each window begins a stride after the previous one, but for the last, which is the last `width` tokens."""
    last = max(len(tokens) - width, 0)
    step = min(stride or max(width // 2, 1), width)
    return [tokens[start : start + width] for start in (*range(0, last, step), last)]


def pooled(features: Features, outputs: Sequence[np.ndarray], records: int) -> np.ndarray:
    """The output of each record: the mean over its rows.

    Args:
      features: of all records.
      outputs: an array [C] for each row.
      records: N; each has at least one row.

    Returns:
      float64 [N, C].
    """
    values = np.stack([np.asarray(output, np.float64) for output in outputs])
    total = np.zeros((records, values.shape[1]))
    np.add.at(total, features.record, values)
    return total / np.bincount(features.record, minlength=records)[:, None]
