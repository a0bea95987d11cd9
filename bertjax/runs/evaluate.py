"""run=evaluate: all figures of a tuned model on a labelled split, as JSON and as a table."""

import json
import pathlib

from ml_collections import ConfigDict
from rich.console import Console

from bertjax.files import exclusive, write_atomic
from bertjax.runs._results import RESULTS, results_table, write_predictions
from bertjax.runs._tuned import config_of_run, load_tuned
from bertjax.runs._tuning import TaskEvaluator


def run(config: ConfigDict, workdir: str) -> None:
    """Evaluates the workdir's model, or that of config.init, on config.split ('dev', or several: 'dev,test').

    The figures join those in WORKDIR/results.json; predictions/ has a line a record and the benchmark's files.

    Raises:
      UserError: no model, no such split, or one without labels.
    """
    folder = pathlib.Path(workdir)
    config = config_of_run(config, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 'trains in this workdir'):
        names = config.split.split(',')
        tuning, params, splits = load_tuned(config, folder, lambda data: {name: data.split(name) for name in names})
        task = tuning.data.task
        path = folder / RESULTS
        results = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
        results = {'task': task.name, 'score': task.score, **results}
        measured = {}
        console = Console(highlight=False, soft_wrap=True)
        for name, split in splits.items():
            predictions = TaskEvaluator(tuning, split).predictions(params)
            measured[name] = task.metrics(split.records, predictions)
            write_predictions(folder / 'predictions', task, name, split, predictions)
            console.print(task.report(split.records, predictions), markup=False)
        results['splits'] = {**results.get('splits', {}), **measured}
        write_atomic(path, json.dumps(results, indent=2) + '\n')
        console.print(results_table({**results, 'splits': measured}))
        console.print(f'{path}, {folder / "predictions"}', markup=False)
