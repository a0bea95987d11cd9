"""Converts queries and documents to sequences with the roles of their tokens."""

from collections.abc import Sequence

import numpy as np

from bertjax.convert.huggingface.multi_vector import MultiVector
from bertjax.data.features import FeatureBuilder, Features
from bertjax.tasks.embedding.features import number_texts
from bertjax.tasks.embedding.losses import TEXT_IDS
from bertjax.tasks.late_interaction.head import AUGMENTING, ORDINARY, SKIPPED
from bertjax.tasks.late_interaction.losses import ROLES
from bertjax.text.tokenizer import Tokenizer


class Tokenization:
    """The tokenisation of ColBERT (arXiv 2004.12832, section 3.2).

    Args:
      tokenizer: The tokenizer.
      settings: The lengths, prompts and pieces to skip.
    """

    def __init__(self, tokenizer: Tokenizer, settings: MultiVector):
        self._tokenizer, self._settings = tokenizer, settings
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        self._ids, self._skipped = ids, [ids[piece] for piece in settings.skiplist if piece in ids]

    def queries(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`, filled up with [MASK] if `settings.augment`."""
        length, sequences = self._settings.query_len, []
        for ids in self._encode(texts, self._settings.query_prompt, length):
            missing = length - len(ids) if self._settings.augment else 0
            padded = np.pad(ids, (0, missing), constant_values=self._tokenizer.mask_id)
            sequences.append((padded, np.repeat(np.int32([ORDINARY, AUGMENTING]), [len(ids), missing])))
        return sequences

    def documents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`."""
        sequences = self._encode(texts, self._settings.document_prompt, self._settings.document_len)
        return [(ids, np.where(np.isin(ids, self._skipped), SKIPPED, ORDINARY).astype(np.int32)) for ids in sequences]

    def _encode(self, texts: Sequence[str], prompt: str, length: int) -> list[np.ndarray]:
        tokenizer, marker = self._tokenizer, np.zeros(0, np.int32)
        word = (prompt.split(None, 1) or [''])[0]
        if word in self._ids and tokenizer.encode([word])[0].tolist() != [self._ids[word]]:
            # A piece such as [unused0], which no text produces.
            marker, prompt = np.int32([self._ids[word]]), prompt[prompt.index(word) + len(word) :]
        encoded = tokenizer.encode([prompt + text for text in texts])
        room, (cls, sep) = length - 2 - len(marker), np.int32([[tokenizer.cls_id], [tokenizer.sep_id]])
        return [np.concatenate([cls, marker, ids[:room], sep]) for ids in encoded]


def group_features(groups: Sequence[Sequence[str]], labels: np.ndarray | None, tokenization: Tokenization) -> Features:
    """Builds a row of C sequences for each query with its documents. Missing texts have empty sequences.

    Args:
      groups: At most C texts per record: the query, then its documents.
      labels: float32 [N, C - 1] for the row array `labels`; None for no such array.
      tokenization: The tokenisation.

    Returns:
      Features with the row array `text_ids`, see `embedding.features.number_texts`, and the token array `token_roles`.
    """
    queries = iter(tokenization.queries([group[0] for group in groups]))
    documents = iter(tokenization.documents([text for group in groups for text in group[1:]]))
    text_ids = number_texts(groups)
    builder, nothing = FeatureBuilder(text_ids.shape[1]), (np.zeros(0, np.int32),) * 2
    for record, (group, ids) in enumerate(zip(groups, text_ids, strict=True)):
        for i in range(len(ids)):
            tokens, roles = next(documents if i else queries) if i < len(group) else nothing
            builder.add_sequence(tokens, **{ROLES: roles})
        builder.add_row(record, **{TEXT_IDS: ids}, **({} if labels is None else {'labels': labels[record]}))
    return builder.build()


def text_features(queries: Sequence[str], documents: Sequence[str], tokenization: Tokenization) -> Features:
    """Builds a row for each query, then for each document."""
    builder = FeatureBuilder()
    for i, (tokens, roles) in enumerate([*tokenization.queries(queries), *tokenization.documents(documents)]):
        builder.add_sequence(tokens, **{ROLES: roles})
        builder.add_row(i)
    return builder.build()
