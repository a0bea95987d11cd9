"""run=export: writes a checkpoint of a workdir to WORKDIR/export/hf and WORKDIR/export/orbax."""

import json
import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.config import plain
from bertjax.convert.huggingface.config import check_exportable, check_head_exportable
from bertjax.errors import UserError
from bertjax.experiment.beginning import with_architecture
from bertjax.experiment.finetuning_settings import finetuning_settings
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.experiment.recorded import recorded_config, recorded_results
from bertjax.experiment.results import RESULTS, STEP, export_task
from bertjax.experiment.saved import config_of_run, load_pretraining, load_task
from bertjax.experiment.summary import export_pretraining, heldout_rows
from bertjax.experiment.workdir import has_checkpoints, working_in


def run(config: ConfigDict, workdir: str, given: Collection[str] = ()) -> None:
    """Exports the checkpoint of config.step; 0 is the newest, or of a task with config.select='best' the best on dev.

    Model and tokenizer are those of the workdir; the recipe must be the one that it was trained with.

    Args:
      config: the recipe's.
      workdir: of a training.
      given: keys that the command line sets, see `config_of_run`.

    Raises:
      UserError: no such checkpoint, a recipe of another model, or a model that the format cannot hold.
    """
    folder = pathlib.Path(workdir)
    if not has_checkpoints(folder):
        raise UserError('--workdir', f'no checkpoints in {workdir}', 'the workdir of a training run', 'train first')
    with working_in(folder):
        if 'task' in config:
            what = _export_task(config_of_run(config, folder, given), folder)
        else:
            what = _export_pretraining(config, folder)
    target = folder / 'export' / 'hf'
    facts = json.loads((target / 'config.json').read_text(encoding='utf-8'))
    print(f'{what} exported to {target} as {facts["architectures"][0]}')


def _export_task(config: ConfigDict, folder: pathlib.Path) -> str:
    """Exports the model of a task; returns what it was, in words."""
    settings = finetuning_settings(config)
    tuned = load_task(settings, folder, lambda data: {'train': data.split('train', training=True)})
    check_head_exportable(tuned.model.setup.model, tuned.model.data.task.head)
    recorded = recorded_config(folder / 'config.json', plain(config))
    task, path = tuned.model.data.task, folder / RESULTS
    results = recorded_results(path) if path.exists() else {'splits': {}}
    if tuned.step is not None and not tuned.finished:
        of_step = recorded['epochs'] * tuned.step / recorded['steps']
        recorded |= {'steps': tuned.step, 'epochs': of_step}
        results = results if results.get(STEP) == tuned.step else {'splits': {}}
    elif STEP in results or results.get('select', settings.select) != settings.select:  # of another checkpoint
        results = {'splits': {}}
    recorded['card'] = settings.recorded['card']
    export_task(folder, recorded, tuned.model, tuned.params, results, finished=tuned.finished)
    return f'model of {task.name}' + ('' if tuned.finished else f' at step {tuned.step}')


def _export_pretraining(config: ConfigDict, folder: pathlib.Path) -> str:
    """Exports a checkpoint; returns what it was, in words."""
    settings = with_architecture(pretraining_settings(config), folder)
    found = load_pretraining(settings, folder)
    check_exportable(found.config)
    step = found.saved.position.step
    about = {name: value for name, value in settings.recorded['card'].items() if value}
    recorded = {**found.saved.config, 'steps': step, 'card': {**found.saved.config.get('card', {}), **about}}
    rows = [row for row in heldout_rows(folder / 'metrics.jsonl', recorded['pairs']['mode']) if row['step'] <= step]
    export_pretraining(folder, recorded, found.config, found.tokenizer, found.params, rows)
    return f'step {step}'
