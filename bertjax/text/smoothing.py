"""Shares of corpora of different sizes, smoothed: a small language comes more often than its size alone would have it.

A corpus of size n has a share in proportion to n^power, as for multilingual BERT (google-research/bert,
multilingual.md: power 0.7, for the examples and for the vocabulary).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction


def smoothed_shares(sizes: Sequence[float], power: float) -> list[float]:
    """The shares of corpora of these sizes; they add up to 1. An empty one has none.

    Args:
      sizes: tokens, characters or sentences; not all 0.
      power: 1 for shares by size, 0 for equal ones.
    """
    raised = [float(size) ** power if size else 0.0 for size in sizes]
    return [x / sum(raised) for x in raised]


def smoothed_counts(counts: Sequence[Mapping[str, int]], power: float) -> dict[str, int]:
    """How often each word occurs in a mixture of corpora by `smoothed_shares` of their characters, sorted by word.

    The corpus that loses most by the smoothing counts as it is, and the others more: nothing is rounded away.

    Args:
      counts: how often each word occurs in each corpus.
      power: see `smoothed_shares`.
    """
    sizes = [sum(len(word) * count for word, count in words.items()) for words in counts]
    shares = smoothed_shares(sizes, power)
    gains = [share / size if size else 0.0 for share, size in zip(shares, sizes, strict=True)]
    least = min(gain for gain in gains if gain)
    total: dict[str, int] = {}
    for words, gain in zip(counts, gains, strict=True):
        # In whole numbers of thousandths, so that no order of additions shows in the counts.
        factor = Fraction(round(1000 * gain / least), 1000)
        for word, count in words.items():
            total[word] = total.get(word, 0) + round(count * factor)
    return dict(sorted(total.items()))


def smoothed_sample(samples: Sequence[Sequence[str]], sizes: Sequence[int], power: float, most: int) -> list[str]:
    """At most `most` sentences of several corpora by `smoothed_shares`; those of a small one may come repeatedly.

    Args:
      samples: sentences drawn from each corpus, in random order.
      sizes: sentences of each.
      power: see `smoothed_shares`.
      most: sentences in all.
    """
    wanted = min(most, sum(map(len, samples)))
    mixed: list[str] = []
    for sample, share in zip(samples, smoothed_shares(sizes, power), strict=True):
        count = round(wanted * share)
        if sample:
            mixed += [sample[i % len(sample)] for i in range(count)]
    return mixed
