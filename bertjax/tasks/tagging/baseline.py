"""Baselines of tagging: the most frequent tag, and the most frequent tag of each word."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from bertjax.tasks.baselines import MOST_FREQUENT
from bertjax.tasks.tagging.columns import Sentence

# The baseline of CoNLL-2003 is similar, but looks up complete entities instead of words.
MOST_FREQUENT_OF_WORD = 'most frequent of the word'


def frequent_tags(train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[list[str]]]:
    """Returns the tags of two baselines, {name of a baseline: tags of each record}.

    A word that does not occur in `train` gets the most frequent tag of all words. Equally frequent tags are ranked in
    alphabetical order.

    Args:
      train: The training records.
      records: The records to predict.
    """
    total: Counter[str] = Counter()
    by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        total.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    default = _most_frequent(total)
    word_tag = {word: _most_frequent(counts) for word, counts in by_word.items()}
    return {
        MOST_FREQUENT: [[default] * len(sentence.words) for sentence in records],
        MOST_FREQUENT_OF_WORD: [[word_tag.get(word, default) for word in sentence.words] for sentence in records],
    }


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
