"""What pages are made of: tables, figures, rows of coloured tokens. Every text that comes in is escaped, but Markup."""

import dataclasses
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

Text = str | Markup


def paragraph(text: Text) -> Markup:
    """A sentence or two."""
    return Markup('<p>{}</p>').format(text)


def note(text: Text) -> Markup:
    """What a reader must know of what is beside it: that something is missing, or what it was compared with."""
    return Markup('<p class="note">{}</p>').format(text)


def warning(text: Text) -> Markup:
    """What a reader should do something about."""
    return Markup('<p class="note warning">{}</p>').format(text)


def code(text: str) -> Markup:
    """A command or a name, in the line."""
    return Markup('<code>{}</code>').format(text)


def link(text: Text, target: str) -> Markup:
    """Text that leads to another file, by its path from the page."""
    return Markup('<a href="{}">{}</a>').format(urllib.parse.quote(target), text)


def columns(*parts: Markup, narrow: bool = False) -> Markup:
    """Beside each other where there is room, below each other where not: two, or if `narrow` three."""
    kind = 'columns narrow' if narrow else 'columns'
    return Markup('<div class="{}">{}</div>').format(kind, Markup('\n').join(parts))


def titled(title: Text, *parts: Markup) -> Markup:
    """Parts under a small heading."""
    return Markup('<div class="titled"><h3>{}</h3>\n{}</div>').format(title, Markup('\n').join(parts))


def folded(title: Text, *parts: Markup) -> Markup:
    """Parts that a click on the title shows."""
    return Markup('<details><summary>{}</summary>\n{}</details>').format(title, Markup('\n').join(parts))


def tiles(values: Mapping[str, tuple[Text, Text]]) -> Markup:
    """The few figures that matter most: {name: (value, a remark or '')}."""
    tile = Markup('<div class="tile"><span>{}</span><strong>{}</strong><small>{}</small></div>')
    return Markup('<div class="tiles">{}</div>').format(
        Markup('').join(tile.format(name, value, remark) for name, (value, remark) in values.items())
    )


def table(
    heads: Sequence[Text],
    rows: Iterable[Sequence[Text]],
    *,
    text: Iterable[int] = (0,),
    marked: Iterable[int] = (),
    caption: Text = '',
) -> Markup:
    """A table that scrolls in its own frame where it is wider than the page.

    Args:
      heads: of the columns; all empty for none.
      rows: a cell for each column.
      text: the columns that are text, to the left; the others are figures, to the right.
      marked: the rows that stand out, by number.
      caption: above it.
    """
    left, standing_out = set(text), set(marked)
    kind = [Markup(' class="text"') if i in left else '' for i in range(len(heads))]
    head = Markup('').join(Markup('<th{}>{}</th>').format(k, h) for k, h in zip(kind, heads, strict=True))
    body = Markup('\n').join(
        Markup('<tr{}>{}</tr>').format(
            Markup(' class="marked"') if number in standing_out else '',
            Markup('').join(Markup('<td{}>{}</td>').format(k, cell) for k, cell in zip(kind, row, strict=True)),
        )
        for number, row in enumerate(rows)
    )
    return Markup('<div class="scroll"><table>{}{}<tbody>\n{}\n</tbody></table></div>').format(
        Markup('<caption>{}</caption>').format(caption) if caption else '',
        Markup('<thead><tr>{}</tr></thead>').format(head) if any(heads) else '',
        body,
    )


def bars(values: Mapping[str, float], shown: Mapping[str, Text]) -> Markup:
    """A horizontal bar a value: `values` give the lengths, 0 and above, `shown` what stands beside each."""
    most = max(values.values(), default=0) or 1
    row = Markup('<tr><td>{}</td><td>{}</td><td><i style="width:{:.1f}%"></i></td></tr>')
    rows = Markup('\n').join(row.format(name, shown[name], 100 * x / most) for name, x in values.items())
    return Markup('<table class="bars"><tbody>{}</tbody></table>').format(rows)


def shade(share: float, text: Text, *, title: str = '', head: str = '') -> Markup:
    """A cell of `shaded`, the darker the larger `share`, 0 to 1, is.

    Args:
      share: of the colour.
      text: in the cell.
      title: what a pointer over it shows.
      head: of a model, which a script of the page knows it by.
    """
    shown = Markup(' title="{}"').format(title) if title else ''
    known = Markup(' data-head="{}"').format(head) if head else ''
    return Markup('<td style="--share:{:.3f}"{}{}>{}</td>').format(share, known, shown, text)


def shaded(heads: Sequence[Text], rows: Mapping[str, Sequence[Markup]], *, corner: Text = '') -> Markup:
    """A table of coloured cells, see `shade`, with a name before each row."""
    head = Markup('').join(Markup('<th>{}</th>').format(h) for h in heads)
    body = (
        Markup('<tr><th class="text">{}</th>{}</tr>').format(name, Markup('').join(cells))
        for name, cells in rows.items()
    )
    return Markup(
        '<div class="scroll"><table class="shaded"><thead><tr><th class="text">{}</th>{}</tr></thead>'
        '<tbody>{}</tbody></table></div>'
    ).format(corner, head, Markup('\n').join(body))


@dataclasses.dataclass(frozen=True)
class Token:
    """A piece in a row of tokens.

    Attributes:
      text: the piece; `##` in front joins it to the one before.
      kind: its colour, a class of style.css: special, a, b, masked, random, kept, right, wrong; '' for none.
      title: what a pointer over it shows.
      under: a second line below it, such as what was there.
    """

    text: str
    kind: str = ''
    title: str = ''
    under: str = ''


def tokens(row: Iterable[Token], label: Text = '') -> Markup:
    """A row of coloured tokens, broken where the page ends; `label` stands before it."""
    parts = []
    for token in row:
        title = Markup(' title="{}"').format(token.title) if token.title else ''
        under = Markup('<small>{}</small>').format(token.under) if token.under else ''
        parts.append(Markup('<span class="token {}"{}>{}{}</span>').format(token.kind, title, token.text, under))
    before = Markup('<div class="label">{}</div>').format(label) if label else ''
    return Markup('<div class="row">{}<div class="tokens">{}</div></div>').format(before, Markup('').join(parts))


def legend(kinds: Mapping[str, str]) -> Markup:
    """What the colours of tokens mean: {kind: meaning}."""
    entry = Markup('<span class="token {}">{}</span>')
    return Markup('<p class="legend">{}</p>').format(Markup(' ').join(entry.format(*item) for item in kinds.items()))
