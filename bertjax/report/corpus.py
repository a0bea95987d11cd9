"""What the text is: the corpus report of each token store."""

from typing import Any

from markupsafe import Markup

from bertjax.corpus.quality import long_documents
from bertjax.corpus.report import BINS
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.pretrain.text_data import WeightedStore


def corpus(stores: list[WeightedStore], names: list[str]) -> Section:
    """A report for each store, `names` being what config.corpus calls them."""
    body = []
    for name, weighted in zip(names, stores, strict=True):
        report = weighted.store.report
        shares = f', {weighted.weight:g} of the examples' if len(stores) > 1 else ''
        body.append(parts.titled(Markup('{}{}').format(parts.code(name), shares), *_report(report)))
        body += [parts.warning(text) for text in (*report['warnings'], *long_documents(weighted.store))]
    return Section('corpus', 'Corpus', body)


def _report(report: dict[str, Any]) -> list[Markup]:
    read, lines = max(1, report['documents_read']), max(1, report['lines'])
    facts = parts.table(
        ['', 'count', ''],
        [
            ('documents', f'{report["documents"]:,}', ''),
            ('… held out', f'{report["heldout_documents"]:,}', f'{report["heldout_tokens"]:,} tokens'),
            ('… with one sentence', f'{report["one_sentence_documents"]:,}', ''),
            ('sentences', f'{report["sentences"]:,}', f'{report["sentences_per_document"]:.1f} a document'),
            ('tokens', f'{report["tokens"]:,}', f'{report["tokens_per_sentence"]:.1f} a sentence'),
            ('… [UNK]', f'{report["unknown_tokens"]:,}', f'{report["unknown_rate"]:.3%}'),
            ('pieces a word', f'{report["pieces_per_word"]:.2f}', ''),
            ('equal documents', f'{report["duplicate_documents"]:,}', f'{report["duplicate_documents"] / read:.2%}'),
            ('equal lines', f'{report["duplicate_lines"]:,}', f'{report["duplicate_lines"] / lines:.2%}'),
            *((f'dropped: {kind}', f'{count:,}', '') for kind, count in report['dropped'].items()),
        ],
        text=(0, 2),
    )
    counts, low = {}, 1
    for bound, count in report['sentence_lengths'].items():
        label = f'over {BINS[-1]}' if bound == 'more' else f'{low} to {bound}' if int(bound) > low else bound
        counts[label] = count
        low = low if bound == 'more' else int(bound) + 1
    lengths = parts.bars(counts, {label: f'{count:,}' for label, count in counts.items()})
    found = [f'{kind}: {line}' for kind, of_kind in report['problems'].items() for line in of_kind]
    return [
        parts.columns(facts, parts.titled('Sentences by length in tokens', lengths)),
        *(
            [parts.folded(f'{len(found)} broken documents, the first of each kind', *map(parts.note, found))]
            if found
            else []
        ),
    ]
