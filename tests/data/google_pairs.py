"""A reference implementation of the pairing of google-research/bert."""

import dataclasses
import itertools
import random

import numpy as np
from data_fakes import MemorySplit


@dataclasses.dataclass
class Pair:
    """Numbers of tokens after truncation, and the random choices that led to them."""

    a: int
    b: int
    is_next: bool
    chunk_sentences: int
    front_a: int
    front_b: int


def truncate(a: int, b: int, max_tokens: int, coin_a, coin_b) -> tuple[int, int, int, int]:
    """Removes tokens one by one; returns the remaining lengths and the numbers of tokens removed at the front."""
    front_a = front_b = 0
    while a + b > max_tokens:
        if a > b:
            a, front_a = a - 1, front_a + coin_a()
        else:
            b, front_b = b - 1, front_b + coin_b()
    return a, b, front_a, front_b


def google_pass(split: MemorySplit, seq_len: int, rng: random.Random, short_probability: float = 0.1) -> list[Pair]:
    """Returns the pairs of one pass over all documents, by the rules of google-research/bert."""
    lengths = np.diff(split.sentence_offsets).tolist()
    bounds = split.document_offsets.tolist()
    documents = [lengths[i:j] for i, j in itertools.pairwise(bounds)]
    max_tokens = seq_len - 3
    pairs = []
    for number, document in enumerate(documents):
        target = rng.randint(2, max_tokens) if rng.random() < short_probability else max_tokens
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = sum(chunk[:a_end])
                is_next = len(chunk) > 1 and rng.random() < 0.5
                if is_next:
                    b = sum(chunk[a_end:])
                else:
                    other = rng.choice([k for k in (rng.randrange(len(documents)) for _ in range(10)) if k != number])
                    b = 0
                    for length in documents[other][rng.randrange(len(documents[other])) :]:
                        b += length
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                coin = lambda: int(rng.random() < 0.5)  # noqa: E731
                a, b, front_a, front_b = truncate(a, b, max_tokens, coin, coin)
                pairs.append(Pair(a, b, is_next, len(chunk), front_a, front_b))
                chunk = []
            i += 1
    return pairs
