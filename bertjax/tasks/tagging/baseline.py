"""Simple answers to tagging: the most frequent tag, and of every word the tag that it had most often."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from bertjax.tasks.baselines import MOST_FREQUENT
from bertjax.tasks.tagging.columns import Sentence

OF_WORD = 'most frequent of the word'  # as the baseline of CoNLL-2003 nearly is: that has whole entities


def frequent_tags(train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[list[str]]]:
    """{name: the tags of each record}; an unknown word gets the most frequent tag of all. Of equally frequent ones it
    is the first in the alphabet."""
    of_all: Counter[str] = Counter()
    of_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        of_all.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            of_word[word][tag] += 1
    usual = _most(of_all)
    known = {word: _most(counts) for word, counts in of_word.items()}
    return {
        MOST_FREQUENT: [[usual] * len(sentence.words) for sentence in records],
        OF_WORD: [[known.get(word, usual) for word in sentence.words] for sentence in records],
    }


def _most(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
