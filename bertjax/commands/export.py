"""run=export: write a checkpoint of WORKDIR to WORKDIR/export in each format of config.export_formats."""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.config.plain import to_plain
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.finetune.restore import load_task, merge_run_config
from bertjax.finetune.results import RESULTS, STEP, STOPPED, export_task
from bertjax.finetune.settings import finetuning_settings
from bertjax.memory import return_freed_memory
from bertjax.pretrain.restore import load_pretraining
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.summary import export_pretraining
from bertjax.pretrain.warm_start import with_architecture
from bertjax.workdir.exports import check_formats, check_push_to, push_export, split_formats
from bertjax.workdir.files import read_recorded_config, read_recorded_results
from bertjax.workdir.lock import TRIALS, has_checkpoints, lock_workdir
from bertjax.writers.jsonl import read_rows

VERB = Verb()


@return_freed_memory()
def run(
    config: ConfigDict, workdir: str, command_line_keys: Collection[str] = (), flag_keys: Collection[str] = ()
) -> None:
    """Exports the checkpoint of config.step. The recipe must have the model's kind of task or the model's architecture.

    Raises:
      UserError: The checkpoint does not exist, the recipe is for another model, or a format cannot represent the model.
    """
    folder = pathlib.Path(workdir)
    if (folder / TRIALS).exists():
        fix = 'use its export/, the model of the best trial'
        raise UserError('--workdir', f'the sweep {workdir}', 'a single run', fix)
    if not has_checkpoints(folder):
        raise UserError('--workdir', f'no checkpoints in {workdir}', 'the workdir of a training run', 'train first')
    with lock_workdir(folder):
        if 'task' in config:
            description, written = _export_task(merge_run_config(config, folder, command_line_keys), folder)
        else:
            description, written = _export_pretraining(config, folder, flag_keys)
    for path in written:
        print(f'{description} exported to {path}')
    push_export(folder, config.push_to, private=config.push_private)


def _export_task(config: ConfigDict, folder: pathlib.Path) -> tuple[str, list[pathlib.Path]]:
    """Returns a description of the exported model, and the written folders."""
    settings = finetuning_settings(config)
    formats = split_formats(settings.export_formats)
    check_push_to(settings.push_to, formats)
    tuned = load_task(settings, folder)
    data = tuned.data
    module = tuned.task_model.setup.module
    check_formats(formats, data.encoder, tokenizer=data.tokenizer, module=module, head=data.task.head)
    recorded = read_recorded_config(folder / 'config.json', config.task.kind)
    task, path = data.task, folder / RESULTS
    results = read_recorded_results(path) if path.exists() else {'splits': {}}
    train = {name: part for name, part in results.get('parts', {}).items() if name == 'train'}
    no_metrics = {'splits': {}, 'parts': train}  # all checkpoints have the same training data
    if tuned.step is not None and not tuned.finished:
        epochs = recorded['epochs'] * tuned.step / recorded['steps']
        recorded |= {'steps': tuned.step, 'epochs': epochs}
        results = results if results.get(STEP) == tuned.step else no_metrics
    elif STEP in results or results.get('use_checkpoint', settings.use_checkpoint) != settings.use_checkpoint:
        # The recorded metrics belong to another checkpoint, but the step at which the run stopped belongs to this one.
        results = no_metrics | ({STOPPED: results[STOPPED]} if STOPPED in results else {})
    recorded |= {'card': to_plain(settings.card), 'push_to': settings.push_to}
    written = export_task(folder, recorded, tuned.task_model, tuned.params, results, formats, finished=tuned.finished)
    return f'model of {task.name}' + ('' if tuned.finished else f' at step {tuned.step}'), written


def _export_pretraining(
    config: ConfigDict, folder: pathlib.Path, flag_keys: Collection[str]
) -> tuple[str, list[pathlib.Path]]:
    """Returns a description of the exported checkpoint, and the written folders."""
    settings = with_architecture(pretraining_settings(config), folder, flag_keys)
    formats = split_formats(settings.export_formats)
    check_push_to(settings.push_to, formats)
    model = load_pretraining(settings, folder)
    step = model.checkpoint.position.step
    about = {name: value for name, value in to_plain(settings.card).items() if value}
    recorded = {**model.checkpoint.config, 'steps': step, 'card': {**model.checkpoint.config.get('card', {}), **about}}
    recorded['push_to'] = settings.push_to
    if recorded.get('budget') and step < model.checkpoint.config['steps']:
        recorded['phases'] = ()  # at this step, the lengths of the phases may not have been decided
    rows = read_rows(folder / 'metrics.jsonl')
    rows = [row for row in rows if row['split'] == 'heldout' and row['step'] <= step]
    check_formats(formats, model.config, tokenizer=model.tokenizer)
    written = export_pretraining(folder, recorded, model.config, model.tokenizer, model.params, rows, formats)
    return f'step {step}', written
