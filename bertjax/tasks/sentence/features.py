"""Texts and pairs of texts to sequences of at most S tokens: truncation and windows."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.truncation import truncate_longest_first
from bertjax.text.tokenizer import Tokenizer

# Value of config.task.long -> its effect on a text that is too long, in words.
LONG = {'truncate': 'lose their end', 'head_tail': 'lose their middle', 'windows': 'are read in windows'}
# Share of a long text's tokens that come from its start: 128 of 510 (Sun et al. 2019, "How to Fine-Tune BERT for
# Text Classification?", arXiv 1905.05583, "Dealing with long texts").
_HEAD = 128 / 510

Pair = tuple[np.ndarray, np.ndarray]
_EMPTY = np.zeros(0, np.int32)


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
    """Builds `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` for N records; two [SEP] after A if the tokenizer has two.

    Args:
      first: The N first texts.
      second: The N second texts, or None if the records are not pairs.
      labels: The labels, int32 or float32 [N], or None; they become `labels` of the rows.
      tokenizer: The tokenizer of the model.
      seq_len: The maximum sequence length S.
      long: The method for longer texts. 'truncate' removes the end of the text. For a pair it removes the end of the
        longer text, or of both if both exceed half of the room (as transformers does). 'head_tail' removes the middle
        of the longer text; a quarter of the remaining tokens come from its start, the others from its end. 'windows'
        cuts the longer text into overlapping windows, each a row with an equal share of the record's weight. With the
        last two methods the shorter text has at most half of the room.
      stride: The distance between the starts of two windows, in tokens; 0 for half a window.
    """
    room = seq_len - (2 if second is None else 2 + tokenizer.separators)
    left = tokenizer.encode(first)
    right = [_EMPTY] * len(left) if second is None else tokenizer.encode(second)
    cls, sep = np.int32([tokenizer.cls_id]), np.int32([tokenizer.sep_id])
    separators = np.repeat(sep, tokenizer.separators)
    builder = FeatureBuilder()
    num_long = sum(len(a) + len(b) > room for a, b in zip(left, right, strict=True))
    for record, (a, b) in enumerate(zip(left, right, strict=True)):
        parts = list(_parts(a, b, room, long, stride))
        values = {} if labels is None else {'labels': labels[record]}
        for a, b in parts:
            if second is None:
                builder.add_sequence(np.concatenate([cls, a, sep]))
            else:
                builder.add_sequence(np.concatenate([cls, a, separators, b, sep]), 1 + len(a) + len(separators))
            builder.add_row(record, weights=np.float32(1 / len(parts)), **values)
    note = f'{num_long:,} of {len(left):,} records are longer than config.seq_len={seq_len} and {LONG[long]}'
    return builder.build(notes=[note] if num_long else [])


def _parts(a: np.ndarray, b: np.ndarray, room: int, long: str, stride: int) -> Iterator[Pair]:
    """Yields the part of each of the two texts for each row."""
    if len(a) + len(b) <= room:
        yield a, b
        return
    if long == 'truncate':
        n, m = truncate_longest_first(len(a), len(b), room)
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
    """Returns windows whose starts are a stride apart; the last window holds the last `width` tokens."""
    last = max(len(tokens) - width, 0)
    step = min(stride or max(width // 2, 1), width)
    return [tokens[start : start + width] for start in (*range(0, last, step), last)]


def average_rows(features: Features, outputs: Sequence[np.ndarray], records: int) -> np.ndarray:
    """Returns the output of each record, the mean over its rows.

    Args:
      features: The features of all records.
      outputs: An array [C] for each row.
      records: The number of records N; each has at least one row.

    Returns:
      float64 [N, C].
    """
    values = np.stack([np.asarray(output, np.float64) for output in outputs])
    total = np.zeros((records, values.shape[1]))
    np.add.at(total, features.record, values)
    return total / np.bincount(features.record, minlength=records)[:, None]
