"""A uniform sample of the sentences of a text, whatever its length: it depends on their number and a seed alone."""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bertjax.text.long_words import shorten_unbroken
from bertjax.text.sentences import split_sentences
from bertjax.text.special import well_formed

MAX_SENTENCE = 1_000  # Characters; longer sentences are cut, to bound the memory of the sample.
Sampled = TypeVar('Sampled')


def sentences_of(texts: Iterable[str]) -> Iterator[str]:
    """The sentences of texts, in pieces of up to MAX_SENTENCE characters; of very long words the beginning."""
    for sentence in itertools.chain.from_iterable(map(split_sentences, texts)):
        sentence = shorten_unbroken(well_formed(sentence))
        for start in range(0, len(sentence), MAX_SENTENCE):
            yield sentence[start : start + MAX_SENTENCE]


def sample(stream: Iterable[Sampled], size: int, seed: int) -> tuple[list[Sampled], int]:
    """A uniform sample of a stream without knowing its length (Vitter 1985, algorithm R), and that length."""
    # Of all methods, Python keeps only random() the same between versions.
    draw = random.Random(seed).random
    drawn: list[Sampled] = []
    count = 0
    for index, one in enumerate(stream):
        count += 1
        if index < size:
            drawn.append(one)
        elif (slot := int(draw() * (index + 1))) < size:
            drawn[slot] = one
    return drawn, count
