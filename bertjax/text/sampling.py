"""Draws a reproducible, uniform sample of sentences from a text of any length."""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bertjax.text.long_words import shorten_unbroken
from bertjax.text.sentences import split_sentences
from bertjax.text.special import replace_surrogates

MAX_SENTENCE = 1_000  # in characters; longer sentences are split to limit the memory of the sample
Sampled = TypeVar('Sampled')


def iter_sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields the sentences of texts in parts of up to MAX_SENTENCE characters. Very long words are shortened."""
    for sentence in itertools.chain.from_iterable(map(split_sentences, texts)):
        sentence = shorten_unbroken(replace_surrogates(sentence))
        for start in range(0, len(sentence), MAX_SENTENCE):
            yield sentence[start : start + MAX_SENTENCE]


def sample(stream: Iterable[Sampled], size: int, seed: int) -> tuple[list[Sampled], int]:
    """Returns a uniform sample of up to `size` items, and the length of the stream (Vitter 1985, algorithm R).

    The indices of the sampled items depend only on the length of the stream, `size` and `seed`.
    """
    # Python guarantees the same numbers in all versions only for random().
    draw = random.Random(seed).random
    drawn: list[Sampled] = []
    count = 0
    for index, item in enumerate(stream):
        count += 1
        if index < size:
            drawn.append(item)
        elif (slot := int(draw() * (index + 1))) < size:
            drawn[slot] = item
    return drawn, count
