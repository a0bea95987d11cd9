"""The page: every head in a few texts, what heads do, which know syntax, what a fine-tuning changed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from bertjax.attention_analysis.changes import NORMS, PARTS, WHOLE
from bertjax.attention_analysis.heads import MEASURES
from bertjax.attention_analysis.relations import ALL, DIRECTIONS, WORDS, together
from bertjax.attention_analysis.shown import LONGEST, ShownText, packed
from bertjax.pages import parts
from bertjax.pages.charts import Series, chart
from bertjax.pages.data import inline
from bertjax.pages.page import Section, own, page

_FREQUENT = 100  # words of a relation that a best head is told of without a caveat, as in Clark et al.'s table
_ARROW = dict(zip(DIRECTIONS, ('dependent → head', 'head → dependent'), strict=True))


def attention_page(
    title: str,
    about: str,
    shown: Sequence[ShownText],
    means: Mapping[str, np.ndarray],
    relations: Sequence[Mapping[str, Any]] = (),
    changes: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The text of the HTML file.

    Args:
      title, about: of the page.
      shown: texts with their attention.
      means: float [L, H] of each of MEASURES.
      relations: rows of `relation_table`.
      changes: rows of `change_rows`.
    """
    sections = [_texts(shown, _first(means, relations))] if shown else []
    sections += [_heads(means)]
    sections += [_relations(relations)] if relations else []
    sections += [_changes(changes)] if changes else []
    style, script = (own('bertjax.attention_analysis', name) for name in _OWN)
    return page(title, about, sections, charts=bool(changes), style=style, script=script)


_OWN = ('attention.css', 'attention.js')


def _first(means: Mapping[str, np.ndarray], relations: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Layer and head to begin with: the one that knows most of syntax, or the one that looks most sharply."""
    if relations:
        return relations[0]['layer'], relations[0]['head']
    layer, head = np.unravel_index(means['entropy'].argmin(), means['entropy'].shape)
    return int(layer) + 1, int(head) + 1


def _texts(shown: Sequence[ShownText], first: tuple[int, int]) -> Section:
    layers, heads = shown[0].weights.shape[:2]
    data = {'layers': layers, 'heads': heads, 'first': first, 'texts': [packed(one) for one in shown]}
    about = (
        'Each small square is a head: row by row what a position attends to, the stronger the colour the more (as the '
        'square root of the weight). Choose one, then point at a word, or walk with the arrow keys; a click holds it. '
        f'The page has the first {len(shown)} text{"s" if len(shown) > 1 else ""}, each up to {LONGEST} tokens, with '
        'weights that are rounded by up to 0.004; weights.safetensors has them whole.'
    )
    return Section(
        'texts', 'Attention in texts', [Markup('<div id="attention"></div>'), inline(data, 'weights')], about
    )


def _heads(means: Mapping[str, np.ndarray]) -> Section:
    layers, heads = means['entropy'].shape
    maps = [_map(name, means[name]) for name in MEASURES]
    shown = lambda name, x: _percent(x) if MEASURES[name][2] == 'share' else f'{x:.2f}'  # noqa: E731
    rows = [
        [_link(i + 1, j + 1), *(shown(name, means[name][i, j]) for name in MEASURES)]
        for i in range(layers)
        for j in range(heads)
    ]
    table = parts.table(['head', *(title for title, _, _ in MEASURES.values())], rows)
    about = (
        'Means over all positions of all texts. Rows are layers, columns heads, and head 3-1 is layer 3, head 1. A '
        'click chooses the head above; a click on a title sorts the table.'
    )
    body = [
        Markup('<div class="maps">{}</div>').format(Markup('\n').join(maps)),
        parts.folded('All heads as a table', Markup('<div class="sortable tall">{}</div>').format(table)),
    ]
    return Section('heads', 'What the heads do', body, about)


def _map(name: str, values: np.ndarray) -> Markup:
    """A heat map, a cell a head: a share from 0 to 1, another figure from 0 to its largest."""
    title, about, unit = MEASURES[name]
    share = unit == 'share'
    largest = 1.0 if share else float(values.max()) or 1.0
    cell = lambda x: f'{100 * x:.0f}' if share else f'{x:.0f}' if largest >= 10 else f'{x:.1f}'  # noqa: E731
    return heat_map(title, f'{about}{", in %" if share else ""}', values, largest, cell)


def heat_map(title: str, about: str, values: np.ndarray, largest: float, cell: Any) -> Markup:
    """A figure of layers by heads; `cell` writes a value."""
    rows = {
        str(i): [
            parts.shade(x / largest, cell(x), title=f'head {i}-{j}: {cell(x)}', head=f'{i}-{j}')
            for j, x in enumerate(of_layer, 1)
        ]
        for i, of_layer in enumerate(values, 1)
    }
    table = parts.shaded([str(j) for j in range(1, values.shape[1] + 1)], rows)
    return Markup('<figure class="map"><figcaption>{}</figcaption><p class="about">{}</p>{}</figure>').format(
        title, about, table
    )


def _relations(rows: Sequence[Mapping[str, Any]]) -> Section:
    overall = {row['relation']: row for row in rows if row['relation'] in (ALL, WORDS)}
    own = [row for row in rows if row['relation'] not in overall]
    often = [row for row in own if row['words'] >= _FREQUENT] or own
    best = overall[ALL]
    tiles = {
        'best single head': (
            _percent(best['accuracy']),
            f'head {best["layer"]}-{best["head"]}, of {best["words"]:,} words',
        ),
        'best fixed offset': (_percent(best['baseline']), f'always the word at {best["offset"]:+d}'),
        'each relation by its best head': (_percent(together(rows)), 'if somebody told the relation'),
    }
    beside = parts.note(
        'The best head of a relation is chosen on the words that it is measured on. With few words the best of many '
        'heads is good by chance.'
    )
    body = [parts.tiles(tiles), beside, _relation_table([*overall.values(), *often], len(overall))]
    seldom = [row for row in own if row not in often]
    if seldom:
        body.append(
            parts.folded(f'{len(seldom)} relations of fewer than {_FREQUENT} words', _relation_table(seldom, 0))
        )
    about = (
        'How often the word that a head attends to most (or that attends most to it: head → dependent) is the '
        'syntactic head. What goes to a word is summed over its pieces, what comes from it is their mean; [CLS], [SEP] '
        'and the word itself are left out, and so are roots. After Clark et al. 2019, table 1.'
    )
    return Section('relations', 'Heads that find syntax', body, about)


def _relation_table(rows: Sequence[Mapping[str, Any]], marked: int) -> Markup:
    heads = ['relation', 'words', 'best head', 'reads', 'right', 'best offset', 'right by it', 'gain']
    cells = [
        [
            row['relation'],
            f'{row["words"]:,}',
            _link(row['layer'], row['head']),
            _ARROW[row['direction']],
            _percent(row['accuracy']),
            f'{row["offset"]:+d}',
            _percent(row['baseline']),
            f'{100 * (row["accuracy"] - row["baseline"]):+.1f}',
        ]
        for row in rows
    ]
    table = parts.table(heads, cells, text=(0, 3), marked=range(marked))
    return Markup('<div class="sortable">{}</div>').format(table)


def _changes(rows: Sequence[Mapping[str, Any]]) -> Section:
    blocks = [row for row in rows if row['layer']]
    every, at = [row['layer'] for row in rows], [row['layer'] for row in blocks]
    draw = lambda title, y, *series: chart(title, series, x='layer (0: embeddings)', y=y, height=280)  # noqa: E731
    hidden = [Series(name, every, [row[key] for row in rows], color, 'dots') for name, key, color in _STATES]
    charts = [
        draw('parameters', 'relative distance', _dots(every, [row['parameters'][WHOLE] for row in rows])),
        draw('hidden states', '1 − cosine', *hidden),
        draw('attention', 'divergence, bits', _dots(at, [row['attention'] for row in blocks])),
    ]
    kinds = (*PARTS, NORMS)
    cells = [[f'{row["layer"]}', *(f'{row["parameters"][kind]:.4f}' for kind in (WHOLE, *kinds))] for row in blocks]
    table = parts.table(['layer', WHOLE, *kinds], cells, caption='Relative distance of the parameters by their part')
    heads = np.array([row['attention_of_heads'] for row in blocks])
    divergence = heat_map(
        'attention of each head', 'mean Jensen-Shannon divergence, in thousandths of a bit', 1000 * heads,
        float(1000 * heads.max()) or 1.0, lambda x: f'{x:.0f}',
    )  # fmt: skip
    about = (
        'The same texts, read before and after. Parameters: ‖after − before‖ / ‖before‖ of a layer. Hidden states: '
        '1 − cosine of a token’s two states, on average. Attention: Jensen-Shannon divergence of a position’s two '
        'distributions, 0 for equal ones and 1 bit for those that have nothing in common.'
    )
    return Section('changes', 'What the fine-tuning changed', [parts.columns(*charts, divergence), table], about)


_STATES = (('all tokens', 'hidden', 'blue'), ('[CLS] alone', 'hidden_cls', 'orange'))


def _dots(x: Sequence[int], y: Sequence[float]) -> Series:
    return Series('', x, y, 'blue', 'dots')


def _link(layer: int, head: int) -> Markup:
    return Markup('<button type="button" class="link" data-head="{0}-{1}">{0}-{1}</button>').format(layer, head)


def _percent(x: float) -> str:
    return f'{100 * x:.1f} %'
