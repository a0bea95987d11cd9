"""The corpus report of each token store."""

from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.report import report_counts, sentence_lengths
from bertjax.pages.charts import BarChart
from bertjax.pages.page import Section
from bertjax.pretrain.text_data import WeightedStore


def corpus_section(stores: list[WeightedStore], names: list[str]) -> Section:
    """Returns the section with a report on each store. `names` has a title for each store."""
    reports, total = [], sum(weighted.weight for weighted in stores)
    for name, weighted in zip(names, stores, strict=True):
        report = weighted.store.report
        # Splits an entry such as 'Tokens': '5,760 (8.0 a sentence)' into three cells.
        cells = [(label, *text.rstrip(')').partition(' (')[::2]) for label, text in report_counts(report).items()]
        lengths = {label: (count, f'{count:,}') for label, count in sentence_lengths(report).items()}
        reports.append(
            {
                'title': name + (f', {weighted.weight / total:.3g} of the examples' if len(stores) > 1 else ''),
                'counts': [(label.replace('  ', '… '), *rest) for label, *rest in cells],
                'lengths': BarChart('Sentences by length in tokens', lengths),
                'problems': [f'{kind}: {line}' for kind, lines in report['problems'].items() for line in lines],
                'warnings': [*report['warnings'], *warn_long_documents(weighted.store)],
            }
        )
    return Section('corpus', 'Corpus', reports)
