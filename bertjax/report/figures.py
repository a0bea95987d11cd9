"""The figures of a task: of a run, or of a sweep and its trials."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bertjax.errors import UserError
from bertjax.experiment.recorded import recorded_results
from bertjax.experiment.results import RESULTS
from bertjax.experiment.trials import AXES, score_of
from bertjax.experiment.workdir import TRIALS
from bertjax.pages import parts
from bertjax.pages.charts import Series, chart
from bertjax.pages.page import Section
from bertjax.report.curves import COLORS, curve
from bertjax.report.run import Run
from bertjax.writers.console import shown
from bertjax.writers.jsonl import read_rows

_CURVES = 12  # trials whose training is drawn


def figures(run: Run) -> Section:
    """results.json as a table: a column a split, a row a figure."""
    results = run.results()
    if not results:
        note = 'The run is not finished: there is no results.json yet.'
        return Section('figures', 'Figures', [parts.note(note)])
    splits, of = results['splits'], results.get('parts', {})
    names = list(dict.fromkeys(name for values in splits.values() for name in values))
    rows = [(name.replace('_', ' '), *(shown(values.get(name)) for values in splits.values())) for name in names]
    heads = ['', *(f'{name} ({of[name]})' if name in of else name for name in splits)]
    marked = [i for i, name in enumerate(names) if name == results.get('score')]
    return Section(
        'figures', 'Figures', [parts.table(heads, rows, marked=marked)], 'Marked: what the run is judged by.'
    )


def trials(run: Run) -> dict[str, dict[str, Any]]:
    """The results of the trials of a sweep that are finished, by name; damaged ones are left out."""
    found = {}
    for path in sorted((run.folder / TRIALS).glob(f'*/{RESULTS}')):
        try:
            results = recorded_results(path)
            score_of(results)
            found[path.parent.name] = {**{field: results.get(field) for field, _ in AXES.values()}, **results}
        except (UserError, KeyError):
            continue
    return found


def sweep(run: Run, found: Mapping[str, Mapping[str, Any]]) -> Section:
    """A sweep: its score by the rate, a point a run, the median of the seeds as a line; and a table."""
    if not found:
        return Section('sweep', 'Sweep', [parts.note('No run of the sweep is finished yet.')])
    score, groups = next(iter(found.values()))['score'], _groups(found)
    best = max(found, key=lambda name: score_of(found[name]))
    drawn: list[Series] = []
    for (what, lines), color in zip(_by_shape(groups).items(), COLORS * len(groups), strict=False):
        drawn += _series(what, lines, color)
    body = [
        parts.tiles(
            {f'best {score} on dev': (shown(score_of(found[best])), best), 'runs': (f'{len(found)}', 'finished')}
        )
    ]
    rates = sorted({key[-1] for key in groups})
    plot = chart(f'{score} on dev', drawn, x='learning rate', y=score, log=True, ticks=rates)
    losses = [
        curve(
            name,
            [row for row in read_rows(run.folder / TRIALS / name / 'metrics.jsonl') if row['split'] == 'train'],
            'loss',
            color,
        )
        for name, color in zip(list(found)[:_CURVES], COLORS * _CURVES, strict=False)
    ]
    losses = [one for one in losses if one]
    first = f', the first {_CURVES} runs' if len(found) > _CURVES else ''
    body.append(parts.columns(plot, *([chart(f'Training loss{first}', losses, x='step', y='loss')] if losses else [])))
    return Section('sweep', 'Sweep', [*body, _settings(groups, found[best]), _runs(found, best, score)])


def _groups(found: Mapping[str, Mapping[str, Any]]) -> dict[tuple, list[Mapping[str, Any]]]:
    """The runs that differ in nothing but their seed, by all the rest; the rate is last."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for results in found.values():
        key = tuple(results[name] for name in ('train', 'batch_size', 'epochs', 'learning_rate'))
        groups.setdefault(key, []).append(results)
    return dict(sorted(groups.items(), key=lambda item: tuple(map(str, item[0][:3])) + (item[0][3],)))


def _by_shape(groups: Mapping[tuple, Sequence[Mapping[str, Any]]]) -> dict[str, list[tuple[float, Sequence]]]:
    shapes: dict[str, list] = {}
    for (train, batch, epochs, rate), runs in groups.items():
        shapes.setdefault(f'{train}, batch {batch}' + (f', {epochs:g} epochs' if epochs else ''), []).append(
            (rate, runs)
        )
    return shapes


def _series(what: str, lines: Sequence[tuple[float, Sequence[Mapping[str, Any]]]], color: str) -> list[Series]:
    medians = [statistics.median(map(score_of, runs)) for _, runs in lines]
    drawn = [Series(f'{what}: median', [rate for rate, _ in lines], medians, color, 'dots')]
    points = [
        (rate, score_of(one), f'{what}\nrate {rate:g}, seed {one["seed"]}\n{score_of(one):.4f}')
        for rate, runs in lines
        for one in runs
    ]
    if len(points) > len(lines):
        rates, scores, texts = map(list, zip(*points, strict=True))
        drawn.append(Series(f'{what}: each run', rates, scores, color, 'points', texts))
    return drawn


def _settings(groups: Mapping[tuple, Sequence[Mapping[str, Any]]], best: Mapping[str, Any]) -> Markup:
    """A line a setting, over its seeds."""
    rows, marked = [], []
    for number, ((train, batch, epochs, rate), runs) in enumerate(groups.items()):
        scores = [score_of(one) for one in runs]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        values = (statistics.median(scores), statistics.fmean(scores), deviation, max(scores))
        place = (train, str(batch), f'{epochs:g}' if epochs else '-', f'{rate:g}', str(len(runs)))
        rows.append((*place, *map(shown, values), str(sum(bool(one.get('collapsed')) for one in runs))))
        marked += [number] if any(one is best for one in runs) else []
    heads = ['train', 'batch', 'epochs', 'rate', 'runs', 'median', 'mean', 'sd', 'best', 'collapsed']
    return parts.table(heads, rows, marked=marked, caption='Over the seeds; marked: the setting of the best run')


def _runs(found: Mapping[str, Mapping[str, Any]], best: str, score: str) -> Markup:
    splits = list(dict.fromkeys(name for results in found.values() for name in results['splits']))
    rows = [
        (
            name,
            *(shown(results['splits'].get(split, {}).get(score)) for split in splits),
            str(results.get('steps', '-')),
        )
        for name, results in sorted(found.items(), key=lambda item: -score_of(item[1]))
    ]
    marked = [i for i, row in enumerate(rows) if row[0] == best]
    return parts.folded(
        f'all {len(rows)} runs',
        parts.table(['run', *(f'{score} on {split}' for split in splits), 'steps'], rows, marked=marked),
    )
