"""The report of benchmarks/results.py: a table in a Markdown page, and a plot."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from experiments import Experiment

from bertjax.files.atomic import write_atomic

# Two single-seed results count as different if they differ by more points than this. Seeds of a task differ by less.
NOTABLE = 2.0
COLORS = {'bertjax': '#1f4e9c', 'trainer': '#b2452b'}
NAMES = {'bertjax': 'bertjax', 'trainer': 'transformers Trainer'}
# The table is written between these marks in a page.
BEGIN, END = '<!-- made by benchmarks/results.py --report -->', '<!-- to here -->'

FinishedRuns = Sequence[tuple[Experiment, str, dict[str, Any]]]
Results = dict[str, list[dict[str, Any]]]  # {framework: the results of its seeds}


def write_report(kept: pathlib.Path, finished: FinishedRuns) -> None:
    """Writes the table between the marks of KEPT.md, and the plot KEPT/results.png."""
    results: dict[str, Results] = {}
    for experiment, framework, result in finished:
        results.setdefault(experiment.name, {}).setdefault(framework, []).append(result)
    experiments = {experiment.name: experiment for experiment, _, _ in finished}
    lines = [
        '| task | figure | bertjax | transformers Trainer | difference | published, base / large, not run here |',
        '|---|---|---|---|---|---|',
    ]
    for name, experiment in experiments.items():
        for place, published in experiment.figures.items():
            lines.append(_line(experiment, place, published, results[name]))
    dates = sorted({result['date'] for *_, result in finished})
    versions = sorted({f'{key} {value}' for *_, result in finished for key, value in result['versions'].items()})
    pooled = _pooled([(experiment, results[name]) for name, experiment in experiments.items()])
    lines += ['', pooled] if pooled else []
    lines += ['', f'{" to ".join(dict.fromkeys((dates[0], dates[-1])))}; {", ".join(versions)}.']
    page = kept.with_suffix('.md')
    if not page.exists():
        write_atomic(page, f'{BEGIN}{END}\n')
    write_between(page, BEGIN, END, lines)
    _draw([(experiment, results[name]) for name, experiment in experiments.items()], kept / 'results.png')
    print('\n'.join(lines))


def write_between(page: pathlib.Path, begin: str, end: str, lines: Sequence[str]) -> None:
    """Replaces the text between two marks of a page with lines."""
    before, rest = page.read_text(encoding='utf-8').split(begin)
    write_atomic(page, '\n'.join([before + begin, '', *lines, '', end + rest.split(end)[1]]))


def scores(place: tuple[str, str], results: Sequence[dict[str, Any]]) -> list[float]:
    """Returns the value of a metric for each seed, in points, without undefined values."""
    values = [result['splits'][place[0]][place[1]] for result in results]
    return [100 * value for value in values if value is not None]


def differs(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Returns whether the ranges of two lists of scores are disjoint, or two single scores differ by over NOTABLE."""
    if not ours or not theirs:
        return False
    if len(ours) == len(theirs) == 1:
        return abs(ours[0] - theirs[0]) > NOTABLE
    return min(ours) > max(theirs) or max(ours) < min(theirs)


def _line(experiment: Experiment, place: tuple[str, str], published: str, results: Results) -> str:
    ours, theirs = (scores(place, results.get(framework, [])) for framework in NAMES)
    difference = ''
    if ours and theirs:
        difference = f'{statistics.fmean(ours) - statistics.fmean(theirs):+.1f}'
        difference += ' (!)' if differs(ours, theirs) else ''
    cells = (experiment.title, ' '.join(place), _format_scores(ours), _format_scores(theirs), difference, published)
    return f'| {" | ".join(cells)} |'


def pooled_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    """Returns the mean difference between the two frameworks over tasks, and its standard error over seeds.

    The variance of a task with several seeds is pooled over the two frameworks. A task with one seed per framework is
    assumed to have the mean variance of the other tasks.

    Args:
      pairs: (scores of bertjax, scores of the Trainer) of each task. At least one task has several seeds.
    """
    squares = [sum((x - statistics.fmean(each)) ** 2 for each in pair for x in each) for pair in pairs]
    freedom = [sum(len(each) - 1 for each in pair) for pair in pairs]
    known = [square / free for square, free in zip(squares, freedom, strict=True) if free]
    usual = statistics.fmean(known)
    error = 0.0
    for (ours, theirs), square, free in zip(pairs, squares, freedom, strict=True):
        error += (square / free if free else usual) * (1 / len(ours) + 1 / len(theirs))
    differences = [statistics.fmean(ours) - statistics.fmean(theirs) for ours, theirs in pairs]
    return statistics.fmean(differences), error**0.5 / len(pairs)


def _pooled(results: Sequence[tuple[Experiment, Results]]) -> str:
    """Returns a line about the first metric of each task that both frameworks ran; '' if no task has several seeds."""
    pairs = []
    for experiment, each in results:
        first = next(iter(experiment.figures))
        ours, theirs = (scores(first, each.get(framework, [])) for framework in NAMES)
        if ours and theirs:
            pairs.append((ours, theirs))
    if all(len(ours) == len(theirs) == 1 for ours, theirs in pairs):
        return ''  # the variance over seeds is unknown
    mean, error = pooled_difference(pairs)
    return f'Over all {len(pairs)} tasks, by the first figure of each: {mean:+.2f} ± {error:.2f} (standard error).'


def _format_scores(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f'{values[0]:.1f}' if values else ''
    spread = f'{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}'
    return f'{spread} (median {statistics.median(values):.1f} of {len(values)})'


def _draw(results: Sequence[tuple[Experiment, Results]], path: pathlib.Path) -> None:
    """Draws the results: one row per task, one dot per seed."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.5 * len(results) + 1.2))
    for row, (experiment, each) in enumerate(results):
        for framework, shift in zip(NAMES, (-0.14, 0.14), strict=True):
            values = scores(next(iter(experiment.figures)), each.get(framework, []))
            label = NAMES[framework] if not row else None
            axis.plot(values, [row + shift] * len(values), 'o', color=COLORS[framework], alpha=0.75, label=label)
    labels = [f'{experiment.title}\n{next(iter(experiment.figures))[1]}' for experiment, _ in results]
    axis.set_yticks(range(len(results)), labels, fontsize=8)
    axis.set_ylim(len(results) - 0.5, -0.5)
    axis.set_xlabel('points of 100')
    axis.grid(axis='x', linewidth=0.5, alpha=0.5)
    axis.spines[['top', 'right']].set_visible(False)
    axis.legend(frameon=False, loc='lower left', bbox_to_anchor=(0, 1), ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=144)
