"""Smooths the shares of corpora of different sizes, so that a small corpus has more than its proportional share.

The share of a corpus of size n is proportional to n^power. google-research/bert, multilingual.md, uses the power 0.7
for the examples and for the vocabulary.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction


def smoothed_shares(sizes: Sequence[float], power: float) -> list[float]:
    """Returns the smoothed shares of corpora of `sizes`, not all 0. Their sum is 1.

    With the `power` 1, the shares are proportional to the sizes. With 0, they are equal.
    """
    powers = [float(size) ** power if size else 0.0 for size in sizes]
    return [x / sum(powers) for x in powers]


def smoothed_counts(counts: Sequence[Mapping[str, int]], power: float) -> dict[str, int]:
    """Returns the counts of words in a mixture of corpora, sorted by word.

    The shares of the corpora are the `smoothed_shares` of their numbers of characters. Counts only increase, so that
    none is rounded to 0. The corpus whose share shrinks most keeps its counts.
    """
    sizes = [sum(len(word) * count for word, count in words.items()) for words in counts]
    shares = smoothed_shares(sizes, power)
    gains = [share / size if size else 0.0 for share, size in zip(shares, sizes, strict=True)]
    min_gain = min(gain for gain in gains if gain)
    total: dict[str, int] = {}
    for words, gain in zip(counts, gains, strict=True):
        # The factor is rounded, because float errors in the shares depend on the order of the corpora.
        factor = Fraction(round(1000 * gain / min_gain), 1000)
        for word, count in words.items():
            total[word] = total.get(word, 0) + round(count * factor)
    return dict(sorted(total.items()))


def smoothed_sample(
    samples: Sequence[Sequence[str]], sizes: Sequence[int], power: float, max_sentences: int
) -> list[str]:
    """Returns a mixture of up to `max_sentences` sentences of several corpora. Rounding may add a few sentences.

    The shares of the corpora are the `smoothed_shares` of their numbers of sentences, `sizes`. A mixture takes evenly
    spaced sentences of a large sample, and repeats the sentences of a small one.
    """
    total = min(max_sentences, sum(map(len, samples)))
    mixed: list[str] = []
    for sample, share in zip(samples, smoothed_shares(sizes, power), strict=True):
        count = round(total * share)
        if sample and count < len(sample):
            mixed += [sample[i * len(sample) // count] for i in range(count)]
        elif sample:
            mixed += [sample[i % len(sample)] for i in range(count)]
    return mixed
