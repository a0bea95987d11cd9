"""The corpus report: statistics of a corpus, and its problems for pre-training."""

import collections
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from rich.table import Table

from bertjax.corpus.merge import DROPPED, Shard, count_distinct_lines
from bertjax.corpus.quality import MAX_PROBLEMS, coherence, find_warnings
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import StoreSplit
from bertjax.errors import printable
from bertjax.terminal import Console

BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # upper bounds of the bins of sentence lengths, in tokens


def make_report(
    shards: list[Shard], splits: dict, train: StoreSplit, *, duplicate_documents: int, options: CorpusOptions
) -> dict:
    """Returns the corpus report for the manifest and for `print_report`.

    Most counts cover the documents of the store. `documents_read`, `characters`, `lines` and the duplicates cover all
    documents that are not broken or empty. A duplicate equals an earlier document or line, except for case and for the
    amount of white space. `splits` is the entry of the manifest, and `train` the training split.
    """
    documents, sentences, tokens = (
        sum(split[name] for split in splits.values()) for name in ('documents', 'sentences', 'tokens')
    )
    unknown = words = single_sentence = longest_sentence = longest_document = 0
    histogram = np.zeros(len(BINS) + 1, np.int64)
    for shard in shards:
        table, in_store = np.array(shard.array('documents')), shard.destination != DROPPED
        lengths = shard.array('sentences')[np.repeat(in_store, table['sentences'])]
        table = table[in_store]
        unknown += int(table['unknown'].sum())
        words += int(table['words'].sum())
        single_sentence += int(np.count_nonzero(table['sentences'] == 1))
        longest_sentence = max(longest_sentence, int(lengths.max(initial=0)))
        longest_document = max(longest_document, int(table['tokens'].max(initial=0)))
        histogram += np.bincount(np.searchsorted(BINS, lengths), minlength=len(BINS) + 1)
    records = [shard.record for shard in shards]
    lines = sum(record['lines'] for record in records)
    likeness, within = coherence(train)
    facts = {
        'documents': documents,
        'sentences': sentences,
        'tokens': tokens,
        'words': words,
        'unknown_tokens': unknown,
        'train_documents': splits['train']['documents'],
        'train_tokens': splits['train']['tokens'],
        'heldout_documents': splits['heldout']['documents'],
        'heldout_tokens': splits['heldout']['tokens'],
        'one_sentence_documents': single_sentence,
        'longest_sentence': longest_sentence,
        'longest_document': longest_document,
        'documents_read': sum(record['documents'] for record in records),
        'characters': sum(record['characters'] for record in records),
        'lines': lines,
        'duplicate_documents': duplicate_documents,
        'duplicate_lines': lines - count_distinct_lines(shards),
        'dropped': add_counts(record['dropped'] for record in records),
        'problems': add_problems(record['problems'] for record in records),
        'sentence_lengths': dict(zip([*map(str, BINS), 'more'], histogram.tolist(), strict=True)),
        'unknown_rate': _round(unknown / max(1, tokens)),
        'pieces_per_word': _round(tokens / max(1, words)),
        'sentences_per_document': _round(sentences / max(1, documents)),
        'tokens_per_sentence': _round(tokens / max(1, sentences)),
        'neighbour_likeness': likeness and _round(likeness),
        'neighbour_likeness_within': within and _round(within),
    }
    return {**facts, 'warnings': find_warnings(facts, options)}


def _round(value: float) -> float:
    return round(float(value), 6)


def add_counts(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sum of counters, the largest count first."""
    total = sum(map(collections.Counter, counters), collections.Counter())
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def add_problems(problems: Iterable[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Returns the first MAX_PROBLEMS problems of each kind, in the order of the shards."""
    total: dict[str, list[str]] = {}
    for problem in problems:
        for kind, lines in problem.items():
            total[kind] = (total.get(kind, []) + lines)[:MAX_PROBLEMS]
    return dict(sorted(total.items()))


def report_counts(report: dict) -> dict[str, str]:
    """Returns the counts of a report as {label: formatted count}."""
    read, lines = max(1, report['documents_read']), max(1, report['lines'])
    return {
        'Documents': f'{report["documents"]:,}',
        '  held out': f'{report["heldout_documents"]:,} ({report["heldout_tokens"]:,} tokens)',
        '  with one sentence': f'{report["one_sentence_documents"]:,}',
        'Sentences': f'{report["sentences"]:,} ({report["sentences_per_document"]:.1f} a document)',
        'Tokens': f'{report["tokens"]:,} ({report["tokens_per_sentence"]:.1f} a sentence)',
        '  [UNK]': f'{report["unknown_tokens"]:,} ({report["unknown_rate"]:.3%})',
        '  pieces a word': f'{report["pieces_per_word"]:.2f}',
        'Duplicate documents': f'{report["duplicate_documents"]:,} ({report["duplicate_documents"] / read:.2%})',
        'Duplicate lines': f'{report["duplicate_lines"]:,} ({report["duplicate_lines"] / lines:.2%})',
        **{f'Dropped: {kind}': f'{count:,}' for kind, count in report['dropped'].items()},
    }


def sentence_lengths(report: dict) -> dict[str, int]:
    """Returns the histogram of a report, {range of tokens: number of sentences}."""
    ranges = [f'{low + 1} to {high}' if high > low + 1 else f'{high}' for low, high in itertools.pairwise((0, *BINS))]
    return dict(zip([*ranges, f'over {BINS[-1]} tokens'], report['sentence_lengths'].values(), strict=True))


def print_report(report: dict, extra_warnings: Sequence[str] = ()) -> None:
    """Prints the corpus report: a table, a histogram, the problems, the warnings, and `extra_warnings`."""
    console, lengths = Console(), sentence_lengths(report)
    histogram = [(label, f'{n:,}', '█' * round(30 * n / max(1, *lengths.values()))) for label, n in lengths.items()]
    counts = list(report_counts(report).items())
    for title, justify, rows in (
        ('The corpus', ('left', 'right'), counts),
        ('Sentences by length', ('right', 'right', 'left'), histogram),
    ):
        table = Table(title=title, title_justify='left', show_header=False, box=None, padding=(0, 2, 0, 0))
        for side in justify:
            table.add_column(justify=side)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for kind, problems in report['problems'].items():
        for line in problems:
            console.print(printable(f'{kind}: {line}'), markup=False, highlight=False, soft_wrap=True)
    for warning in [*report['warnings'], *extra_warnings]:
        console.print(f'warning: {warning}', style='yellow', markup=False, highlight=False, soft_wrap=True)
