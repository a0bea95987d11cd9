"""Converts texts and pairs to sequences of at most seq_len tokens. Long texts are truncated or read in windows."""

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.pairs import add_special_tokens, join_pair, truncate_longest_first
from bertjax.text.tokenizer import Tokenizer

# {value of config.task.long: its effect on records that are too long, for a message}.
LONG = {'truncate': 'lose their end', 'head_tail': 'lose their middle', 'windows': 'are read in windows'}
# 'head_tail' takes this fraction of the kept tokens from the start of a text (Sun et al. 2019, "How to Fine-Tune BERT
# for Text Classification?", arXiv 1905.05583, "Dealing with long texts").
_HEAD = 128 / 510

Pair = tuple[np.ndarray, np.ndarray]


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
    """Builds the rows of N records: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` for pairs.

    Args:
      first: The N first texts.
      second: The N second texts; None if the records are not pairs.
      labels: The row array `labels`; None if the labels are unknown. Label indices are int32 [N], and scores are
        float32 [N]. For C independent labels, the array is float32 [N, C] and consists of 0 and 1.
      long: The method for records that are longer than `seq_len` tokens.
        'truncate' removes the end of a single text. In a pair, it removes tokens as in `truncate_longest_first`.
        'head_tail' removes the middle of the longer text. It keeps about three times as much of the end as of the
        start.
        'windows' splits the longer text into windows, which overlap by default. Each window is a row. The rows of a
        record have equal weights with a sum of 1.
        With 'head_tail' and 'windows', the shorter text keeps at most half of the available tokens.
      stride: The distance between the starts of consecutive windows, in tokens, at most the length of a window; 0 for
        half a window.
    """
    max_tokens = seq_len - (2 if second is None else 2 + tokenizer.separators)
    left = tokenizer.encode(first)
    right = [np.zeros(0, np.int32)] * len(left) if second is None else tokenizer.encode(second)
    builder = FeatureBuilder()
    num_long = sum(len(a) + len(b) > max_tokens for a, b in zip(left, right, strict=True))
    for record, (a, b) in enumerate(zip(left, right, strict=True)):
        parts = list(_parts(a, b, max_tokens, long, stride))
        values = {} if labels is None else {'labels': labels[record]}
        for a, b in parts:
            if second is None:
                builder.add_sequence(add_special_tokens(a, tokenizer))
            else:
                builder.add_sequence(*join_pair(a, b, tokenizer))
            builder.add_row(record, weights=np.float32(1 / len(parts)), **values)
    note = f'{num_long:,} of {len(left):,} records are longer than config.seq_len={seq_len} and {LONG[long]}'
    return builder.build(notes=[note] if num_long else [])


def _parts(a: np.ndarray, b: np.ndarray, max_tokens: int, long: str, stride: int) -> Iterator[Pair]:
    """Yields (part of `a`, part of `b`) for each row of a record."""
    if len(a) + len(b) <= max_tokens:
        yield a, b
        return
    if long == 'truncate':
        n, m = truncate_longest_first(len(a), len(b), max_tokens)
        yield a[:n], b[:m]
        return
    swap = len(b) > len(a)
    longer, shorter = (b, a) if swap else (a, b)
    shorter = shorter[: max_tokens // 2]
    width = max_tokens - len(shorter)
    last = len(longer) - width  # the start of the last window, which ends at the end of the text
    if long == 'windows':
        starts = (*range(0, last, min(stride or max(width // 2, 1), width)), last)
        selected = [longer[start : start + width] for start in starts]
    else:
        head = round(width * _HEAD)
        selected = [np.concatenate([longer[:head], longer[last + head :]])]
    for part in selected:
        yield (shorter, part) if swap else (part, shorter)


def average_rows(features: Features, outputs: Sequence[np.ndarray], records: int) -> np.ndarray:
    """Averages the `outputs`, [C] for each row, over the rows of each record. Returns float64 [`records`, C]."""
    values = np.stack([np.asarray(output, np.float64) for output in outputs])
    total = np.zeros((records, values.shape[1]))
    np.add.at(total, features.record, values)
    return total / np.bincount(features.record, minlength=records)[:, None]
