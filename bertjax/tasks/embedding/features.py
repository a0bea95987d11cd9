"""Converts texts to rows: a row of several sequences for each group of texts, or a row for each text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.embedding.losses import TEXT_IDS
from bertjax.tasks.pairs import add_special_tokens
from bertjax.text.tokenizer import Tokenizer

EncodedText = tuple[np.ndarray, Mapping[str, np.ndarray]]  # the tokens of a text, and its token arrays by name


def target_scores(records: Sequence[TextExample], max_score: float) -> np.ndarray | None:
    """Returns the scores of N training records, float32, divided by `max_score`; None for records without scores.

    The scores of pairs are [N]. A teacher's scores for groups of up to C texts are [N, C - 1]; 0 for a missing text.
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


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, seq_len: int) -> tuple[list[EncodedText], list[str]]:
    """Returns the sequence `[CLS] … [SEP]` of each text, and a list with a note if any text is truncated."""
    encoded = tokenizer.encode(texts)
    longer = sum(len(tokens) > seq_len - 2 for tokens in encoded)
    notes = [f'{longer:,} of {len(texts):,} texts are longer than config.seq_len={seq_len} and lose their end']
    sequences = [(add_special_tokens(tokens[: seq_len - 2], tokenizer), {}) for tokens in encoded]
    return sequences, notes if longer else []


def group_features(
    groups: Sequence[Sequence[str]],
    labels: np.ndarray | None,
    sequences: Iterator[EncodedText],
    notes: Sequence[str] = (),
) -> Features:
    """Builds a row of C sequences for each of N groups of texts. C is the size of the largest group.

    A missing text of a smaller group is an empty sequence. The row array `text_ids`, int32 [N, C], has equal ids for
    equal texts, and 0 for a missing text. The row array `labels` is float32 [N, ...], or omitted if it is None.
    `sequences` has the sequences of all texts, group by group.
    """
    numbers: dict[str, int] = {}
    builder = FeatureBuilder(max(map(len, groups)))
    for record, group in enumerate(groups):
        text_ids = np.zeros(builder.choices, np.int32)
        text_ids[: len(group)] = [numbers.setdefault(text, len(numbers) + 1) for text in group]
        for number in text_ids:
            if number:
                tokens, arrays = next(sequences)
            else:
                tokens, arrays = tokens[:0], {name: x[:0] for name, x in arrays.items()}
            builder.add_sequence(tokens, **arrays)
        builder.add_row(record, **{TEXT_IDS: text_ids}, **({} if labels is None else {'labels': labels[record]}))
    return builder.build(notes)


def text_features(sequences: Iterable[EncodedText], notes: Sequence[str] = ()) -> Features:
    """Builds a row for each text."""
    builder = FeatureBuilder()
    for i, (tokens, arrays) in enumerate(sequences):
        builder.add_sequence(tokens, **arrays)
        builder.add_row(i)
    return builder.build(notes)
