"""What a corpus holds, and what of it will disturb pre-training."""

import collections
from collections.abc import Iterable

import numpy as np

from bertjax.corpus.options import CorpusOptions
from bertjax.corpus.unit import PROBLEMS_KEPT

BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # Upper bounds of the histogram of sentence lengths, in tokens.


class Statistics:
    """Gathers the report's numbers unit by unit; `watch` fits `merge.merge_units`."""

    def __init__(self):
        self.documents = self.sentences = self.tokens = self.unknown = self.words = 0
        self.single_sentence = self.longest_sentence = self.longest_document = 0
        self.histogram = np.zeros(len(BINS) + 1, np.int64)

    def watch(self, split: str, table: np.ndarray, lengths: np.ndarray) -> None:
        """Adds documents (DOCUMENT records) and the token counts of their sentences."""
        if not len(table):
            return
        self.documents += len(table)
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self.unknown += int(table['unknown'].sum())
        self.words += int(table['words'].sum())
        self.single_sentence += int(np.count_nonzero(table['sentences'] == 1))
        self.longest_sentence = max(self.longest_sentence, int(lengths.max()))
        self.longest_document = max(self.longest_document, int(table['tokens'].max()))
        bins = np.searchsorted(BINS, lengths)
        self.histogram += np.bincount(bins, minlength=len(BINS) + 1)

    def report(
        self, *, units: list[dict], splits: dict, duplicate_documents: int, distinct_lines: int, options: CorpusOptions
    ) -> dict:
        """The corpus report: plain numbers, for the manifest and for `print_report`."""
        lines = sum(unit['lines'] for unit in units)
        counts = {
            'documents': self.documents,
            'sentences': self.sentences,
            'tokens': self.tokens,
            'words': self.words,
            'characters': sum(unit['characters'] for unit in units),
            'unknown_tokens': self.unknown,
            'train_documents': splits['train']['documents'],
            'heldout_documents': splits['heldout']['documents'],
            'heldout_tokens': splits['heldout']['tokens'],
            'one_sentence_documents': self.single_sentence,
            'longest_sentence': self.longest_sentence,
            'longest_document': self.longest_document,
            'documents_read': sum(unit['documents'] for unit in units),
            'duplicate_documents': duplicate_documents,
            'lines': lines,
            'duplicate_lines': lines - distinct_lines,
            'dropped': add_counts(unit['dropped'] for unit in units),
            'problems': add_problems(unit['problems'] for unit in units),
            'sentence_lengths': dict(zip([*map(str, BINS), 'more'], self.histogram.tolist(), strict=True)),
        }
        rates = {
            'unknown_rate': self.unknown / max(1, self.tokens),
            'pieces_per_word': self.tokens / max(1, self.words),
            'sentences_per_document': self.sentences / max(1, self.documents),
            'tokens_per_sentence': self.tokens / max(1, self.sentences),
        }
        counts.update({name: round(value, 6) for name, value in rates.items()})
        counts['warnings'] = []
        return counts


def add_counts(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of counters, largest first."""
    total: collections.Counter = collections.Counter()
    for counter in counters:
        total.update(counter)
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def add_problems(problems: Iterable[dict[str, list[str]]]) -> dict[str, list[str]]:
    """The first few of each kind, in the order of the units."""
    total: dict[str, list[str]] = {}
    for problem in problems:
        for kind, lines in problem.items():
            total[kind] = (total.get(kind, []) + lines)[:PROBLEMS_KEPT]
    return dict(sorted(total.items()))
