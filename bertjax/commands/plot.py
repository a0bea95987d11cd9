"""run=plot: write WORKDIR/learning_curve.png, the learning curve of the run in WORKDIR."""

import io
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import display_path
from bertjax.pages.charts import Chart
from bertjax.pretrain.chance_baselines import ChanceBaselines, read_chance_baselines
from bertjax.report.curves import main_charts, teacher_charts
from bertjax.workdir.lock import REQUEST, TRIALS
from bertjax.writers.jsonl import read_rows

VERB = Verb(devices=False, bucket='look')

_STYLES = {'line': '-', 'dots': 'o-', 'level': '--'}
# Matplotlib has the other colors under the same names with the prefix tab:.
_COLORS = {'pale': '#b8c4d6', 'teal': 'tab:cyan'}


def run(config: ConfigDict, workdir: str) -> None:
    """Draws the main charts and the teacher charts of report/curves.py. Any recipe is accepted.

    Raises:
      UserError: metrics.jsonl is missing or has no finite value, config.json is damaged, or there is no matplotlib.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        fix = "install the extra 'plot': pip install 'bertjax[plot]'"
        raise UserError('--config.run=plot', 'no matplotlib', 'the package matplotlib', fix) from None
    folder, picture = pathlib.Path(workdir), io.BytesIO()
    metrics, path = folder / 'metrics.jsonl', folder / 'learning_curve.png'
    for marker, kind, part in ((TRIALS, 'sweep', f'{TRIALS}/TRIAL'), (REQUEST, 'benchmark', 'TASK')):
        if not metrics.exists() and (folder / marker).exists():
            fix = f'use --config.run=report for the whole {kind}, or --workdir={folder}/{part} for one of its runs'
            raise UserError(str(folder), f'a {kind}', 'a single training run', fix)
    if not metrics.exists():
        raise UserError(str(metrics), 'no such file', 'the metrics of a training run', 'train first, in this --workdir')
    rows = read_rows(metrics)
    baselines = read_chance_baselines(folder) if any('mlm_loss' in row for row in rows) else ChanceBaselines()
    charts = [*main_charts(rows, baselines), *teacher_charts(rows)]
    if not charts:
        fix = 'see --config.run=doctor' if rows else 'let the run reach step config.log_every'
        raise UserError(str(metrics), 'no finite value' if rows else 'no row', 'a curve to draw', fix)
    _draw(charts).savefig(picture, dpi=144)
    write_atomic(path, picture.getvalue())
    print(f'drawn: {display_path(path)}')


def _draw(charts: Sequence[Chart]) -> Any:
    """Returns a matplotlib figure with a panel for each chart, in at most two columns."""
    # pyplot is not used: it would keep the figure open, and a notebook might display it.
    from matplotlib.figure import Figure

    columns, lines = min(len(charts), 2), -(-len(charts) // 2)
    figure = Figure(figsize=(6.5 * columns, 4.2 * lines))
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, chart in itertools.zip_longest(axes.flat, charts):
        if chart is None:
            axis.remove()
            continue
        for curve in chart.curves:
            color = _COLORS.get(curve.color, f'tab:{curve.color}')
            style = 'o' if len(curve.x) == 1 else _STYLES[curve.kind]  # a line needs two points
            axis.plot(curve.x, curve.y, style, color=color, label=curve.name, markersize=3.5, linewidth=1.4)
        axis.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axis.set_xlim(left=0)
        axis.spines[['top', 'right']].set_visible(False)
        if len(chart.curves) > 1:
            axis.legend(frameon=False, loc='best')
    figure.tight_layout()
    return figure
