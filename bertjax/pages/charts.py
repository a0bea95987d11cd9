"""Charts for a page, drawn by Plotly. The page contains Plotly's script, compressed (2 MB), and fetches nothing.

A color is the name of a CSS variable in style.css. page.js looks up the color of the light or the dark mode.
"""

import base64
import dataclasses
import functools
import gzip
import html
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError

COLORS = ('blue', 'orange', 'green', 'purple', 'teal', 'pink', 'red')
_MODES = {'line': 'lines', 'dots': 'lines+markers', 'level': 'lines', 'points': 'markers'}
_LAYOUT = {
    'template': 'none',  # page.js sets the template for the light or the dark mode
    'margin': {'l': 8, 'r': 12, 't': 8, 'b': 8},
    'xaxis': {'automargin': True, 'title': {'standoff': 12}},
    # Write 0.00015; Plotly's default is 150µ.
    'yaxis': {'automargin': True, 'title': {'standoff': 12}, 'exponentformat': 'e', 'minexponent': 5},
    'legend': {'orientation': 'h', 'x': 0, 'y': 1.02, 'yanchor': 'bottom'},
    'hoverlabel': {'namelength': -1},  # by default, Plotly cuts long names, even within an HTML escape
    'uirevision': 'same',  # keeps the reader's zoom when the colors change
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve, or separate points, in a chart.

    Attributes:
      name: The entry in the legend.
      color: The NAME of a variable `--NAME` in style.css.
      kind: 'line', 'dots' (a line with its points), 'level' (a dashed line) or 'points' (no line).
      text: The hover text of each point; by default its coordinates.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = 'blue'
    kind: str = 'line'
    text: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves over a common x axis.

    Attributes:
      curves: The curves, in the order of the legend.
      y, x: The titles of the axes.
      ticks: The ticks of a logarithmic x axis; without ticks the axis is linear.
      height: The height in pixels, for up to four entries in the legend; each further entry adds 22 pixels.
    """

    title: str
    curves: Sequence[Curve]
    y: str = ''
    x: str = 'step'
    ticks: Sequence[float] = ()
    height: int = 340

    def figure(self) -> Any:
        """Returns a plotly.graph_objects.Figure."""
        from plotly import graph_objects as go

        figure = go.Figure([_trace(curve) for curve in self.curves], _LAYOUT)
        figure.update_layout(
            height=self.height + 22 * max(len(self.curves) - 4, 0),
            xaxis_title_text=self.x,
            yaxis_title_text=self.y,
            showlegend=len(self.curves) > 1,
            hovermode='closest' if any(curve.text for curve in self.curves) else 'x unified',
        )
        if self.ticks:
            labels = [f'{tick:.2g}'.replace('e-0', 'e-') for tick in self.ticks]
            figure.update_xaxes(type='log', tickvals=self.ticks, ticktext=labels)
        return figure


@dataclasses.dataclass(frozen=True)
class BarChart:
    """Horizontal bars, {name: (length, text at the end of the bar)}."""

    title: str
    bars: Mapping[str, tuple[float, str]]

    def figure(self) -> Any:
        """Returns a plotly.graph_objects.Figure."""
        from plotly import graph_objects as go

        lengths, texts = zip(*self.bars.values(), strict=True)
        names = [_escape(name) for name in self.bars]
        bar = {'orientation': 'h', 'y': names, 'x': lengths, 'meta': 'blue', 'hoverinfo': 'skip'}
        figure = go.Figure(go.Bar(bar, text=texts, textposition='outside', cliponaxis=False), _LAYOUT)
        figure.update_layout(height=30 + 25 * len(names))
        figure.update_xaxes(visible=False, range=[0, 1.25 * max(lengths) or 1])  # room for the texts
        figure.update_yaxes(autorange='reversed', showgrid=False, type='category', ticksuffix='  ')
        return figure


def _trace(curve: Curve) -> dict[str, Any]:
    kind = 'dots' if curve.kind == 'line' and len(curve.x) == 1 else curve.kind  # a line needs two points
    return {
        'type': 'scatter',
        'name': _escape(curve.name),
        'x': curve.x,
        'y': curve.y,
        'mode': _MODES[kind],
        'line': {'width': 2, 'dash': 'dash' if kind == 'level' else 'solid'},
        'marker': {'size': 7},
        'meta': curve.color,
        'text': [_escape(text).replace('\n', '<br>') for text in curve.text] or None,
        'hovertemplate': '%{text}<extra></extra>' if curve.text else None,
    }


def _escape(text: str) -> str:
    """Escapes text for Plotly, which interprets some HTML."""
    return html.escape(text, quote=False)


def check_plotly() -> None:
    """Raises UserError unless Plotly is installed."""
    try:
        import plotly  # noqa: F401
    except ImportError:
        fix = "install the extra 'report': pip install 'bertjax[report]'"
        raise UserError('this page', 'no plotly', 'plotly to draw its charts', fix) from None


@functools.cache
def packed_plotly() -> str:
    """Returns Plotly's script, compressed, in base64. The bytes never vary. Raises a UserError without Plotly."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode('utf-8'), mtime=0)).decode('ascii')
