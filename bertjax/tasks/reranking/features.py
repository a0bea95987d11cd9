"""Converts queries and their texts to sequences of at most S tokens."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.truncation import truncate_longest_first
from bertjax.text.tokenizer import Tokenizer


def pair_features(
    groups: Sequence[tuple[str, Sequence[str]]], labels: np.ndarray | None, tokenizer: Tokenizer, *, seq_len: int
) -> Features:
    """Builds a row of C sequences `[CLS] query [SEP] text [SEP]` for each query. A missing text has an empty sequence.

    A pair that is too long loses the end of its longer part, as in sentence-transformers.

    Args:
      groups: The queries, each with at most C texts.
      labels: float32 [N, ...] for the row array `labels`; None for no such array.
      tokenizer: The tokenizer.
      seq_len: The maximum sequence length S.
    """
    texts = list(dict.fromkeys(text for query, others in groups for text in (query, *others)))
    tokens = dict(zip(texts, tokenizer.encode(texts), strict=True))
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    separators = sep * tokenizer.separators
    room, truncated = seq_len - 2 - len(separators), 0
    choices = max(len(others) for _, others in groups)
    builder = FeatureBuilder(choices)
    for i, (query, others) in enumerate(groups):
        a = tokens[query]
        for b in map(tokens.get, others):
            n, m = truncate_longest_first(len(a), len(b), room)
            truncated += n + m < len(a) + len(b)
            builder.add_sequence(np.concatenate([cls, a[:n], separators, b[:m], sep]), 1 + n + len(separators))
        for _ in range(choices - len(others)):
            builder.add_sequence([])
        builder.add_row(i, **({} if labels is None else {'labels': labels[i]}))
    pairs = sum(len(others) for _, others in groups)
    note = f'{truncated:,} of {pairs:,} pairs are longer than config.seq_len={seq_len} and lose their end'
    return builder.build([note] if truncated else [])
