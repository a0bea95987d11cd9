"""Makes the HTML page of an analysis: attention in texts, statistics of heads, syntax, and changes by fine-tuning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from bertjax.attention_analysis.changes import ALL_PARTS, NORMS, PARTS
from bertjax.attention_analysis.corpus_pass import Findings
from bertjax.attention_analysis.heads import MEASURES, head_rows
from bertjax.attention_analysis.relations import ALL, DIRECTIONS, MIN_WORDS, WORDS, best_heads_accuracy
from bertjax.attention_analysis.shown_texts import MAX_SHOWN_TOKENS, encode_for_page
from bertjax.inference.attention import Attention
from bertjax.pages.charts import Chart, Curve
from bertjax.pages.page import Section, render_page

_ARROW = dict(zip(DIRECTIONS, ('dependent → head', 'head → dependent'), strict=True))


def attention_page(title: str, about: str, findings: Findings, shown_texts: Sequence[Attention]) -> str:
    """Returns the text of the HTML file."""
    sections = [_texts_section(shown_texts, findings)] if shown_texts else []
    sections += [_heads_section(findings.means)]
    sections += [_relations_section(findings.relations)] if findings.relations else []
    sections += [_changes_section(findings.changes)] if findings.changes else []
    charts = bool(findings.changes)
    return render_page('attention.html.j2', title, about, sections, charts=charts, assets=['attention'])


def _texts_section(shown_texts: Sequence[Attention], findings: Findings) -> Section:
    entropy = findings.means['entropy']
    layers, heads = entropy.shape
    if findings.relations:  # The page first shows the best head for syntax.
        first = findings.relations[0]['layer'], findings.relations[0]['head']
    else:
        first = tuple(int(i) + 1 for i in np.unravel_index(entropy.argmin(), entropy.shape))
    data = {'layers': layers, 'heads': heads, 'first': first, 'texts': [encode_for_page(text) for text in shown_texts]}
    texts = 'text' if len(shown_texts) == 1 else f'{len(shown_texts)} texts, each'
    about = (
        'Each small square is a head. A row shows what a position attends to; the color strength is the square root of '
        'the weight. Choose a head, then point at a word or use the arrow keys; a click keeps the word selected. '
        f'The page has the first {texts} up to {MAX_SHOWN_TOKENS} tokens. Its weights are rounded by up to 0.004. '
        'The exact weights are in weights.safetensors.'
    )
    return Section('texts', 'Attention in texts', data, about)


def _heads_section(means: Mapping[str, np.ndarray]) -> Section:
    write = {name: _percent if unit == 'share' else '{:.2f}'.format for name, (_, _, unit) in MEASURES.items()}
    rows = head_rows(means)
    data = {
        'maps': [_measure_map(name, means[name]) for name in MEASURES],
        'titles': [title for title, _, _ in MEASURES.values()],
        'rows': [[_button(row['layer'], row['head']), *(write[name](row[name]) for name in MEASURES)] for row in rows],
    }
    about = (
        'Means over all positions of all texts. Rows are layers and columns are heads; head 3-1 is head 1 of layer 3. '
        'A click on a head selects it above; a click on a title sorts the table.'
    )
    return Section('heads', 'What the heads do', data, about)


def _measure_map(name: str, values: np.ndarray) -> dict[str, Any]:
    title, about, unit = MEASURES[name]
    if unit == 'share':
        return _heat_map(title, f'{about}, in %', 100 * values, 100.0, '.0f')
    largest = float(values.max()) or 1.0
    return _heat_map(title, about, values, largest, '.0f' if largest >= 10 else '.1f')


def _heat_map(title: str, about: str, values: np.ndarray, largest: float, form: str) -> dict[str, Any]:
    """Returns a heat map of layers by heads with a color scale from 0 to `largest`."""
    rows = {str(i): [(x / largest, format(x, form)) for x in heads] for i, heads in enumerate(values.tolist(), 1)}
    return {'title': title, 'about': about, 'columns': range(1, values.shape[1] + 1), 'rows': rows}


def _relations_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    overall = {row['relation']: row for row in rows if row['relation'] in (ALL, WORDS)}
    single = [row for row in rows if row['relation'] not in overall]
    frequent = [row for row in single if row['words'] >= MIN_WORDS] or single
    best = overall[ALL]
    data = {
        'tiles': {
            'best single head': (
                _percent(best['accuracy']),
                f'head {best["layer"]}-{best["head"]}, of {best["words"]:,} words',
            ),
            'best fixed offset': (_percent(best['baseline']), f'always the word at {best["offset"]:+d}'),
            'each relation by its best head': (_percent(best_heads_accuracy(rows)), 'if the relation were known'),
        },
        'overall': len(overall),
        'rows': [_relation_row(row) for row in (*overall.values(), *frequent)],
        'rare': [_relation_row(row) for row in single if row not in frequent],
        'frequent': MIN_WORDS,
    }
    about = (
        'How often the word with the highest attention weight is the syntactic head. “dependent → head” '
        'uses the weights from the dependent, and “head → dependent” uses the weights to the dependent. Weights to '
        'the pieces of a word are summed, and weights from its pieces are averaged. [CLS], [SEP], the word itself and '
        'roots are excluded. The table follows table 1 of Clark et al. 2019.'
    )
    return Section('relations', 'Heads that find syntax', data, about)


def _relation_row(row: Mapping[str, Any]) -> list[str]:
    return [
        row['relation'],
        f'{row["words"]:,}',
        _button(row['layer'], row['head']),
        _ARROW[row['direction']],
        _percent(row['accuracy']),
        f'{row["offset"]:+d}',
        _percent(row['baseline']),
        f'{100 * (row["accuracy"] - row["baseline"]):+.1f}',
    ]


def _button(layer: int, head: int) -> Markup:
    """Returns a button that selects a head."""
    return Markup('<button type="button" class="link" data-head="{0}">{0}</button>').format(f'{layer}-{head}')


def _changes_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    blocks = [row for row in rows if row['layer']]
    all_layers, block_layers = [row['layer'] for row in rows], [row['layer'] for row in blocks]
    distances = [row['parameters'][ALL_PARTS] for row in rows]
    draw = lambda title, y, *curves: Chart(title, curves, y, x='layer (0: embeddings)', height=280)  # noqa: E731
    kinds = [kind for kind in (ALL_PARTS, *PARTS, NORMS) if kind in blocks[0]['parameters']]
    heads = 1000 * np.array([row['attention_of_heads'] for row in blocks])
    unit = 'mean Jensen-Shannon divergence, in thousandths of a bit'
    data = {
        'charts': [
            draw('parameters', 'relative distance', Curve('', all_layers, distances, kind='dots')),
            draw(
                'hidden states',
                '1 − cosine',
                Curve('all tokens', all_layers, [row['hidden'] for row in rows], 'blue', 'dots'),
                Curve('[CLS] alone', all_layers, [row['hidden_cls'] for row in rows], 'orange', 'dots'),
            ),
            draw(
                'attention',
                'divergence, bits',
                Curve('', block_layers, [row['attention'] for row in blocks], kind='dots'),
            ),
        ],
        'map': _heat_map('attention of each head', unit, heads, float(heads.max()) or 1.0, '.0f'),
        'kinds': kinds,
        'rows': [[row['layer'], *(f'{row["parameters"][kind]:.4f}' for kind in kinds)] for row in blocks],
    }
    about = (
        'Both models read the same texts. Parameters: ‖after − before‖ / ‖before‖ of a layer. Hidden states: the mean '
        'of 1 − cosine of a token’s two states. Attention: the mean Jensen-Shannon divergence of a position’s two '
        'distributions, 0 for equal and 1 bit for disjoint ones.'
    )
    return Section('changes', 'What the fine-tuning changed', data, about)


def _percent(x: float) -> str:
    return f'{100 * x:.1f} %'
