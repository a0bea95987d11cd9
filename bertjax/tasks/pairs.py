"""Builds sequences `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. With RoBERTa's tokenizer, two [SEP] precede B."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.text.tokenizer import Tokenizer


def truncate_longest_first(first: int, second: int, max_total: int) -> tuple[int, int]:
    """Returns the lengths of two sequences, in tokens, after truncation to the sum `max_total`.

    Tokens are removed from the longer sequence until both lengths are equal, then from both sequences in turn. The
    lengths are the same as with `truncation='longest_first'` in Hugging Face tokenizers.
    """
    short, long = sorted((first, second))
    if short + long > max_total:
        short, long = min(short, max_total // 2), max(max_total - short, max_total - max_total // 2)
    return (short, long) if first <= second else (long, short)


def add_special_tokens(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Returns the tokens of `[CLS] A [SEP]`, int32."""
    return np.concatenate([np.int32([tokenizer.cls_id]), tokens, np.int32([tokenizer.sep_id])])


def join_pair(first: np.ndarray, second: np.ndarray, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """Returns the tokens of `[CLS] A [SEP] B [SEP]`, and the position at which B begins."""
    sep = [tokenizer.sep_id]
    parts = [tokenizer.cls_id], first, sep * tokenizer.separators, second, sep
    return np.concatenate(parts), 1 + len(first) + tokenizer.separators


def pair_features(
    groups: Sequence[tuple[str, Sequence[str]]], arrays: Mapping[str, np.ndarray], tokenizer: Tokenizer, seq_len: int
) -> Features:
    """Builds a row for each first text, with a sequence for each of its second texts.

    Empty sequences pad each row to the largest number of second texts. `truncate_longest_first` shortens a long pair.

    Args:
      groups: N first texts, each with its second texts.
      arrays: The row arrays, {name: [N, ...]}.
    """
    texts = list(dict.fromkeys(text for first, others in groups for text in (first, *others)))
    tokens = dict(zip(texts, tokenizer.encode(texts), strict=True))
    max_tokens, truncated = seq_len - 2 - tokenizer.separators, 0
    choices = max(len(others) for _, others in groups)
    builder = FeatureBuilder(choices)
    for i, (first, others) in enumerate(groups):
        a = tokens[first]
        for b in map(tokens.get, others):
            n, m = truncate_longest_first(len(a), len(b), max_tokens)
            truncated += n + m < len(a) + len(b)
            builder.add_sequence(*join_pair(a[:n], b[:m], tokenizer))
        for _ in range(choices - len(others)):
            builder.add_sequence([])
        builder.add_row(i, **{name: values[i] for name, values in arrays.items()})
    pairs = sum(len(others) for _, others in groups)
    note = f'{truncated:,} of {pairs:,} pairs are longer than config.seq_len={seq_len} and lose their end'
    return builder.build([note] if truncated else [])
