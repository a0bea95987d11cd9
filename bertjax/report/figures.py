"""The figures of a task: of a run, or of a sweep and its trials."""

import contextlib
import itertools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bertjax.errors import UserError
from bertjax.finetune.results import RESULTS
from bertjax.finetune.trials import AXES, Trial, score_of, summarise
from bertjax.pages import parts
from bertjax.pages.charts import Series, chart
from bertjax.pages.page import Section
from bertjax.report.curves import COLORS, curve
from bertjax.report.run_record import Run
from bertjax.workdir.files import recorded_results
from bertjax.workdir.lock import TRIALS
from bertjax.writers.console import format_value
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
    rows = [(name.replace('_', ' '), *(format_value(values.get(name)) for values in splits.values())) for name in names]
    heads = ['', *(f'{name} ({of[name]})' if name in of else name for name in splits)]
    marked = [i for i, name in enumerate(names) if name == results.get('score')]
    return Section(
        'figures', 'Figures', [parts.table(heads, rows, marked=marked)], 'Marked: what the run is judged by.'
    )


def members(run: Run) -> Section | None:
    """Of an ensemble, what each of its models reaches alone beside what they reach together; None of anything else."""
    results = run.results() or {}
    if len(run.models) < 2 or 'splits' not in results:
        return None
    score, alone = results.get('score', ''), results.get('alone', {})
    splits = [name for name in results['splits'] if name in alone]
    rows = [
        (_linked(member, run.folder), *(format_value(alone[split].get(str(member))) for split in splits))
        for member in run.models
    ]
    rows.append(('together', *(format_value(results['splits'][split].get(score)) for split in splits)))
    heads = ['', *(f'{score} on {split}' for split in splits)]
    return Section('members', 'Members', [parts.table(heads, rows, marked=[len(run.models)])])


def _linked(member: pathlib.Path, folder: pathlib.Path) -> Markup | str:
    """The name of a workdir, which leads to its page where there is one."""
    path = member / 'report.html'
    return parts.link(str(member), os.path.relpath(path, folder)) if path.exists() else str(member)


def trials(run: Run) -> list[tuple[Trial, dict[str, Any]]]:
    """The trials of a sweep that are finished, with their results; damaged ones are left out."""
    found = []
    for path in (run.folder / TRIALS).glob(f'*/{RESULTS}'):
        with contextlib.suppress(UserError, KeyError):
            results = recorded_results(path)
            score_of(results)  # raises
            found.append((Trial(**{field: results[field] for field, _ in AXES.values()}), results))
    return sorted(found, key=lambda item: item[0])


def sweep(run: Run, found: Sequence[tuple[Trial, Mapping[str, Any]]]) -> Section:
    """A sweep: its score by the rate, a point a run, the median of the seeds as a line; and a table."""
    if not found:
        return Section('sweep', 'Sweep', [parts.note('No run of the sweep is finished yet.')])
    score = found[0][1]['score']
    summary = summarise(found, score)
    scores = {trial: score_of(results) for trial, results in found}
    best = max(scores, key=lambda trial: scores[trial])
    tiles = {f'best {score} on dev': (format_value(scores[best]), best.name), 'runs': (f'{len(found)}', 'finished')}
    plot = chart(
        f'{score} on dev',
        _series(summary['settings'], scores),
        x='learning rate',
        y=score,
        log=True,
        ticks=sorted({trial.learning_rate for trial in scores}),
    )
    charts = parts.columns(plot, *_losses(run, [trial.name for trial in scores]))
    return Section('sweep', 'Sweep', [parts.tiles(tiles), charts, _settings(summary, best), _runs(found, best, score)])


def _series(lines: Sequence[Mapping[str, Any]], scores: Mapping[Trial, float]) -> list[Series]:
    """By shape of the runs, the median at each rate, and each run."""
    drawn, colors = [], itertools.cycle(COLORS)
    shape = lambda line: (line['train'], line['batch_size'], line['epochs'])  # noqa: E731
    for key, group in itertools.groupby([line for line in lines if line['median'] is not None], key=shape):
        color, name = next(colors), f'{key[0]}, batch {key[1]}' + (f', {key[2]:g} epochs' if key[2] else '')
        of_rate = {line['learning_rate']: line['median'] for line in group}
        drawn.append(Series(f'{name}: median', list(of_rate), list(of_rate.values()), color, 'dots'))
        mine = {trial: score for trial, score in scores.items() if trial.shape == key and math.isfinite(score)}
        if len(mine) > len(of_rate):
            texts = [f'{name}\nrate {x.learning_rate:g}, seed {x.seed}\n{score:.4f}' for x, score in mine.items()]
            rates = [trial.learning_rate for trial in mine]
            drawn.append(Series(f'{name}: each run', rates, list(mine.values()), color, 'points', texts))
    return drawn


def _losses(run: Run, names: Sequence[str]) -> list[Markup]:
    """The training of the first of the runs."""
    drawn, colors = [], itertools.cycle(COLORS)
    for name in names[:_CURVES]:
        rows = [row for row in read_rows(run.folder / TRIALS / name / 'metrics.jsonl') if row['split'] == 'train']
        one = curve(name, rows, 'loss', next(colors))
        drawn += [one] if one else []
    first = f', the first {_CURVES} runs' if len(names) > _CURVES else ''
    return [chart(f'Training loss{first}', drawn, x='step', y='loss')] if drawn else []


def _settings(summary: Mapping[str, Any], best: Trial) -> Markup:
    """A line a setting, over its seeds, as sweep.json has it."""
    rows, marked = [], []
    for number, line in enumerate(summary['settings']):
        epochs = f'{line["epochs"]:g}' if line['epochs'] else '-'
        place = (line['train'], str(line['batch_size']), epochs, f'{line["learning_rate"]:g}', str(line['runs']))
        figures = (format_value(line[name]) for name in ('median', 'mean', 'sd', 'best'))
        rows.append((*place, *figures, str(line['collapsed'])))
        setting = tuple(line[name] for name in ('train', 'batch_size', 'epochs', 'learning_rate'))
        marked += [number] if setting == best.without_seed else []
    heads = ['train', 'batch', 'epochs', 'rate', 'runs', 'median', 'mean', 'sd', 'best', 'collapsed']
    return parts.table(heads, rows, marked=marked, caption='Over the seeds; marked: the setting of the best run')


def _runs(found: Sequence[tuple[Trial, Mapping[str, Any]]], best: Trial, score: str) -> Markup:
    """Every run, the best first."""
    ordered = sorted(found, key=lambda item: -score_of(item[1]))
    splits = list(dict.fromkeys(name for _, results in found for name in results['splits']))
    rows = [
        (trial.name, *(format_value(results['splits'].get(split, {}).get(score)) for split in splits))
        for trial, results in ordered
    ]
    marked = [number for number, (trial, _) in enumerate(ordered) if trial == best]
    heads = ['run', *(f'{score} on {split}' for split in splits)]
    return parts.folded(f'all {len(rows)} runs', parts.table(heads, rows, marked=marked))
