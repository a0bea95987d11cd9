"""Charts with zoom, drawn by Plotly, which the page carries in itself.

Plotly's own file is 4.8 MB and its smaller builds come with no Python package; compressed it is 2 MB of the page, which
the browser unpacks. Charts of our own would have spared that, and been worse to read: no box to zoom into, no common
readout, no way to take a picture.
"""

import base64
import dataclasses
import functools
import gzip
import html
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from bertjax.errors import UserError
from bertjax.pages.data import inline


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve, or the points of a scatter plot.

    Attributes:
      name: in the legend.
      x, y: of its points.
      color: a colour of style.css, `--NAME`.
      look: 'line', 'dots' (a line with its points), 'dashes' (a level), 'points' (no line).
      text: of each point, lines for a pointer over it; its coordinates where there is none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = 'blue'
    look: str = 'line'
    text: Sequence[str] = ()


def chart(
    title: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    log: bool = False,
    ticks: Sequence[float] = (),
    height: int = 340,
) -> Markup:
    """A figure with a curve for each of `series`.

    Args:
      title: above it.
      series: what is drawn.
      x, y: titles of the axes.
      log: whether the x axis is logarithmic.
      ticks: where the x axis has its figures; by default where Plotly puts them.
      height: in pixels, of a chart whose legend has up to four lines; more make it higher.
    """
    drawn = {
        'series': [_trace(one) for one in series],
        'x': _escaped(x),
        'y': _escaped(y),
        'log': log,
        'ticks': list(ticks),
    }
    return Markup(
        '<figure class="chart"><figcaption>{}</figcaption>'
        '<div class="plot" role="img" aria-label="{}" style="height:{}px">{}</div></figure>'
    ).format(title, title, height + 22 * max(len(series) - 4, 0), inline(drawn))


def _trace(one: Series) -> dict[str, Any]:
    # A line of one point is not to be seen.
    look = 'dots' if one.look == 'line' and len(one.x) == 1 else one.look
    mode = {'line': 'lines', 'dots': 'lines+markers', 'dashes': 'lines', 'points': 'markers'}[look]
    trace = {'name': _escaped(one.name), 'x': list(one.x), 'y': list(one.y), 'mode': mode, 'color': one.color}
    if one.look == 'dashes':
        trace['dash'] = 'dash'
    if one.text:
        trace |= {
            'text': [_escaped(text).replace('\n', '<br>') for text in one.text],
            'hovertemplate': '%{text}<extra></extra>',
        }
    return trace


def _escaped(text: str) -> str:
    """For Plotly, which reads some HTML in what it writes."""
    return html.escape(text, quote=False)


def check_plotly() -> None:
    """Raises:
    UserError: Plotly is not installed.
    """
    try:
        import plotly  # noqa: F401
    except ImportError:
        fix = "install the extra 'report': pip install -e '.[report]'"
        raise UserError('this page', 'no plotly', 'plotly to draw its charts', fix) from None


def drawing() -> Markup:
    """The element that carries Plotly, for page.js to unpack.

    Raises:
      UserError: it is not installed.
    """
    check_plotly()
    return Markup('<script type="text/plain" id="plotly">{}</script>\n').format(_packed())


@functools.cache
def _packed() -> str:
    """Plotly's file compressed; equal bytes every time."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode('utf-8'), mtime=0)).decode('ascii')
