"""Converts groups of texts, for training, or single texts to sequences of at most S tokens."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.embedding.losses import TEXT_IDS
from bertjax.text.tokenizer import Tokenizer


def target_scores(records: Sequence[TextExample], max_score: float) -> np.ndarray | None:
    """Returns the scores of training records, divided by `max_score`, or None if they have none.

    Returns:
      float32 [N] for scored pairs; [N, C - 1] for a teacher's scores of at most C - 1 texts; 0 for a missing text.
    """
    if records[0].form == 'scored':
        scores = np.array([record.score for record in records], np.float32)
    elif records[0].form == 'distilled':
        scores = np.zeros((len(records), max(len(record.teacher) for record in records)), np.float32)
        for row, record in zip(scores, records, strict=True):
            row[: len(record.teacher)] = record.teacher
    else:
        return None
    return scores / np.float32(max_score)


def number_texts(groups: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns int32 [N, C] for N groups of at most C texts: equal for equal texts, 0 for a missing text."""
    numbers: dict[str, int] = {}
    ids = np.zeros((len(groups), max(map(len, groups))), np.int32)
    for row, group in zip(ids, groups, strict=True):
        row[: len(group)] = [numbers.setdefault(text, len(numbers) + 1) for text in group]
    return ids


def group_features(
    groups: Sequence[Sequence[str]],
    labels: np.ndarray | None,
    tokenizer: Tokenizer,
    *,
    seq_len: int,
    prompts: tuple[str, str] = ('', ''),
) -> Features:
    """Builds a row of C sequences `[CLS] … [SEP]` for each group of texts. A missing text is an empty sequence.

    Args:
      groups: The texts of each record, at most C.
      labels: float32 [N, ...] for the row array `labels`; None for no such array.
      tokenizer: The tokenizer.
      seq_len: The maximum sequence length S; longer texts lose their end.
      prompts: The prefix of the first text of each group, and the prefix of its other texts.

    Returns:
      Features with the row array `text_ids`, see `number_texts`.
    """
    texts = [prompts[i > 0] + text for group in groups for i, text in enumerate(group)]
    sequences, notes = _tokenise(texts, tokenizer, seq_len)
    text_ids, remaining = number_texts(groups), iter(sequences)
    builder = FeatureBuilder(text_ids.shape[1])
    for record, (group, ids) in enumerate(zip(groups, text_ids, strict=True)):
        for i in range(len(ids)):
            builder.add_sequence(next(remaining) if i < len(group) else np.zeros(0, np.int32))
        builder.add_row(record, **{TEXT_IDS: ids}, **({} if labels is None else {'labels': labels[record]}))
    return builder.build(notes)


def text_features(texts: Sequence[str], tokenizer: Tokenizer, *, seq_len: int) -> Features:
    """Builds a row `[CLS] … [SEP]` for each text."""
    builder = FeatureBuilder()
    sequences, notes = _tokenise(texts, tokenizer, seq_len)
    for i, tokens in enumerate(sequences):
        builder.add_sequence(tokens)
        builder.add_row(i)
    return builder.build(notes)


def _tokenise(texts: Sequence[str], tokenizer: Tokenizer, seq_len: int) -> tuple[list[np.ndarray], list[str]]:
    encoded = tokenizer.encode(texts)
    ends = np.int32([tokenizer.cls_id]), np.int32([tokenizer.sep_id])
    longer = sum(len(tokens) > seq_len - 2 for tokens in encoded)
    notes = [f'{longer:,} of {len(texts):,} texts are longer than config.seq_len={seq_len} and lose their end']
    sequences = [np.concatenate([ends[0], tokens[: seq_len - 2], ends[1]]) for tokens in encoded]
    return sequences, notes if longer else []
