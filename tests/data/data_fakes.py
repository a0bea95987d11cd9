"""A token store and a tokenizer in memory."""

import hashlib
from collections.abc import Sequence

import numpy as np


class MemorySplit:
    """A split of a token store in memory. A document is a list of sentences, and a sentence is an array of ids."""

    segments = None

    def __init__(self, documents: Sequence[Sequence[np.ndarray]]):
        sentences = [np.asarray(sentence, np.int32) for document in documents for sentence in document]
        self._tokens = np.concatenate([*sentences, np.empty(0, np.int32)])
        self.sentence_offsets = np.cumsum([0] + [len(sentence) for sentence in sentences], dtype=np.int64)
        self.document_offsets = np.cumsum([0] + [len(document) for document in documents], dtype=np.int64)
        self.num_documents, self.num_sentences, self.num_tokens = len(documents), len(sentences), len(self._tokens)
        parts = (self._tokens, self.sentence_offsets, self.document_offsets)
        self.sha = hashlib.sha256(b''.join(part.tobytes() for part in parts)).hexdigest()

    def tokens(self, start: int, length: int) -> np.ndarray:
        return self._tokens[start : start + length]


class FakeVocabulary:
    """A vocabulary: ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK], 5 to 9 are unused, every third other id continues
    a word."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    separators = 1
    special_ids = np.arange(10, dtype=np.int32)

    def __init__(self, vocab_size: int = 1000):
        self.vocab_size = vocab_size
        names = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'[unused{i}]' for i in range(5))]
        self.pieces = [*names, *map(str, range(10, vocab_size))]
        self.continues_word = (np.arange(vocab_size) % 3 == 0) & (np.arange(vocab_size) >= 10)


def synthetic_split(seed: int = 0, documents: int = 200, sentences: int = 40, mean: float = 22.0) -> MemorySplit:
    """Returns random documents with geometric numbers of sentences (mean `sentences`) and log-normal lengths of
    sentences (median `mean` tokens)."""
    rng = np.random.default_rng(seed)
    return MemorySplit(
        [
            [
                rng.integers(10, 1000, size=max(1, int(rng.lognormal(np.log(mean), 0.6))))
                for _ in range(rng.geometric(1 / sentences))
            ]
            for _ in range(documents)
        ]
    )
