"""The tokenisation of queries and documents, with the roles of their tokens."""

from collections.abc import Sequence

import numpy as np

from bertjax.convert.huggingface.multi_vector import MultiVector
from bertjax.tasks.embedding.features import EncodedText
from bertjax.tasks.late_interaction.head import AUGMENTING, ORDINARY, SKIPPED
from bertjax.tasks.late_interaction.losses import ROLES
from bertjax.tasks.pairs import add_special_tokens
from bertjax.text.tokenizer import Tokenizer


class Tokenization:
    """The tokenisation of ColBERT (arXiv 2004.12832, section 3.2).

    Args:
      tokenizer: The tokenizer.
      settings: The lengths, the prompts, the pieces to skip, and whether to fill queries with [MASK].
    """

    def __init__(self, tokenizer: Tokenizer, settings: MultiVector):
        self._tokenizer, self._settings = tokenizer, settings
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        self._ids, self._skipped = ids, [ids[piece] for piece in settings.skiplist if piece in ids]

    def queries(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`, padded with [MASK] if `settings.augment`."""
        length, sequences = self._settings.query_len, []
        for ids in self._encode(texts, self._settings.query_prompt, length):
            missing = length - len(ids) if self._settings.augment else 0
            padded = np.pad(ids, (0, missing), constant_values=self._tokenizer.mask_id)
            roles = np.repeat(np.int32([ORDINARY, AUGMENTING]), [len(ids), missing])
            sequences.append((padded, {ROLES: roles}))
        return sequences

    def documents(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`."""
        sequences = self._encode(texts, self._settings.document_prompt, self._settings.document_len)
        roles = [np.where(np.isin(ids, self._skipped), SKIPPED, ORDINARY).astype(np.int32) for ids in sequences]
        return [(ids, {ROLES: x}) for ids, x in zip(sequences, roles, strict=True)]

    def _encode(self, texts: Sequence[str], prompt: str, length: int) -> list[np.ndarray]:
        tokenizer, marker = self._tokenizer, np.zeros(0, np.int32)
        word = (prompt.split(None, 1) or [''])[0]
        if word in self._ids and tokenizer.encode([word])[0].tolist() != [self._ids[word]]:
            # A piece such as [unused0], which no text produces.
            marker, prompt = np.int32([self._ids[word]]), prompt[prompt.index(word) + len(word) :]
        encoded = tokenizer.encode([prompt + text for text in texts])
        return [add_special_tokens(np.concatenate([marker, ids])[: length - 2], tokenizer) for ids in encoded]
