"""Loads the config and the model of a finished or unfinished fine-tuning run from its workdir."""

import contextlib
import dataclasses
import filecmp
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.config.check import config_keys
from bertjax.config.plain import flatten, from_plain
from bertjax.config.resume import START_WEIGHTS
from bertjax.config.schema import Trained
from bertjax.convert.load import load_task_model, read_source
from bertjax.errors import UserError
from bertjax.files.paths import is_remote, real_path
from bertjax.files.small_files import read_json_object, read_json_or_none
from bertjax.finetune.results import OTHER_DATA, RESULTS, STEP, is_about
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.finetune.task_data import TASK_FILE, TaskData, TaskSplit, load_task_tokenizer, read_encoder_config
from bertjax.finetune.task_model import TaskModel
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.remote.paths import user_path
from bertjax.tasks.exported import build_task_for_class
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.splits import STEMS
from bertjax.training.setup import Setup
from bertjax.training.state import put_params
from bertjax.workdir.exports import exported_model
from bertjax.workdir.files import has_task_file, read_recorded_config, read_recorded_results, read_recorded_task
from bertjax.workdir.lock import SWEEP, TRIALS, exported_trial, has_checkpoints
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import load_workdir_tokenizer

# Options that affect the answers of a model. task.json has the values that were used in training.
_ANSWER_OPTIONS = {f'task.{name}' for name in ('threshold', 'max_answer', 'n_best', 'normalize', 'activation')}
# Options of tasks that name files.
_FILE_OPTIONS = [name for split in STEMS for name in (split, f'{split}_file')]


def merge_run_config(config: ConfigDict, folder: pathlib.Path, command_line_keys: Collection[str] = ()) -> ConfigDict:
    """Returns the recorded config of the run in the workdir, updated with the keys of `config` that may change.

    If the workdir has no run, the result is `config`. `command_line_keys` are the keys that the command line sets, such
    as 'task.dev_file'. Raises a UserError if the recipe is for another kind of task, or if the command line changes a
    key that must not change.
    """
    path = folder / 'config.json'
    if not path.exists():
        return config
    recorded = read_recorded_config(path, config.task.kind)
    merged, new, old = from_plain(recorded), flatten(config), flatten(recorded)
    for name, key in config_keys(config).items():
        if key.trained is Trained.RECIPE or (key.trained is Trained.COMMAND_LINE and name in command_line_keys):
            config_path.set_value(name, merged, config_path.get_value(name, config), accept_new_attributes=True)
        elif name in START_WEIGHTS and has_checkpoints(folder):
            if name in command_line_keys and new[name] != old.get(name):
                print(f'config.{name} has no effect: the weights are those of the run in {folder}')
        elif key.trained is Trained.SAME and name in command_line_keys and new[name] != old.get(name):
            fix = 'leave it out, or give the workdir of another run'
            raise UserError(f'config.{name}', repr(new[name]), f'{old.get(name)!r}, as in {path}', fix)
    merged.data = config.data or recorded['data']
    if real_path(merged.data) != real_path(recorded['data']):
        for name in _FILE_OPTIONS:
            value = merged.task.get(name, '')
            moves = all(_moves(part, recorded['data'], merged.data) for part in filter(None, value.split(',')))
            if not moves and f'task.{name}' not in command_line_keys:
                print(f'config.task.{name}={value} is not used with other data')
                merged.task[name] = ''
    return merged


def _moves(name: str, old: str, new: str) -> bool:
    """Whether `name`, a file beside or in the data `old`, can name another file beside or in the data `new`."""
    if os.path.isabs(name) or is_remote(name) or _beside(old, name) == _beside(new, name):
        return False
    return not os.path.isfile(os.path.expanduser(new)) or os.path.exists(_beside(new, name))


def _beside(data: str, name: str) -> str:
    """Returns the path of the file `name` in the folder `data`, or beside the file `data`."""
    data = os.path.expanduser(data)
    if is_remote(data):  # a path with a suffix counts as a file
        return os.path.join(os.path.dirname(data) if pathlib.PurePath(data).suffix else data, name)
    return os.path.realpath(os.path.join(data if os.path.isdir(data) else os.path.dirname(data), name))


def evaluation_settings(
    config: ConfigDict, folder: pathlib.Path, command_line_keys: Collection[str] = ()
) -> FinetuningSettings:
    """Returns the settings for the model in a workdir or, if the workdir has no run, for the model in config.init.

    If config.data is a single file that cannot be the training file of the run, all its records are dev unless a dev
    file is named. Raises the errors of `merge_run_config` and `merge_task_file`.
    """
    path = folder / 'config.json'
    if not path.exists():
        return finetuning_settings(merge_task_file(config, command_line_keys) if config.init else config)
    merged, recorded = merge_run_config(config, folder, command_line_keys), read_recorded_config(path)
    if 'train' in merged.task and not merged.task.dev and not merged.input:
        is_same = real_path(merged.data) == real_path(recorded['data'])
        file = None if is_same else _new_file(merged.data, recorded)
        if file:
            merged.task.dev = file.name
            print(f'dev is all records of {merged.data}, because the run was trained on {recorded["data"]}')
    return finetuning_settings(merged)


def _new_file(data: str, recorded: Mapping[str, Any]) -> epath.Path | None:
    """Returns the file `data`, or train.jsonl if it is alone in `data`; None if the run may have trained on a copy."""
    file = user_path(data, 'config.data')
    if file.is_dir() and [path.name for path in file.iterdir()] == ['train.jsonl']:
        file /= 'train.jsonl'
    if not (file.is_file() or is_saved_dataset(file)):
        return None
    try:
        folder = pathlib.Path(user_path(recorded['data'], 'config.data'))
    except UserError:  # there is no access to the bucket
        return None
    if not folder.exists():  # the training data may have moved
        return None
    training_files = filter(pathlib.Path.is_file, (folder, folder / recorded['task']['train'], *folder.glob('train*')))
    return None if any(filecmp.cmp(path, file, shallow=False) for path in training_files) else file


def merge_task_file(config: ConfigDict, command_line_keys: Collection[str] = ()) -> ConfigDict:
    """Returns `config` with config.seq_len and the task options from the task.json of the model in config.init.

    Keys that only name the data keep their values. So do keys that the command line sets; a line is printed if the
    value of such a key differs from task.json. Raises a UserError if config.init names no model or a model for another
    kind of task, or if only one of the model and `config` is for pairs.
    """
    path = pathlib.Path(huggingface_directory(config.init)) / TASK_FILE
    facts = read_json_or_none(path, lambda facts: {'task': {**facts['task']}, 'seq_len': facts['seq_len']})
    if facts is None or not has_task_file(path, config.task.kind):
        return config
    merged, new, recorded = config.copy_and_resolve_references(), flatten(config), flatten(facts)
    for name, key in config_keys(config).items():
        is_of_model = key.trained is Trained.SAME or name in _ANSWER_OPTIONS
        if name in recorded and is_of_model and recorded[name] != new[name]:
            if name in command_line_keys:
                print(f'config.{name} is {new[name]!r}, but {recorded[name]!r} in {path}')
            else:
                config_path.set_value(name, merged, from_plain(recorded[name]), accept_new_attributes=True)
    check_pairs(config.task, facts['task'], path)
    return merged


def check_pairs(options: Mapping[str, Any], recorded: Mapping[str, Any], path: pathlib.Path) -> None:
    """Raises a UserError if only one of two tasks is for pairs of texts.

    `options` are the options of the current task. `recorded` are the options in `path`, the task.json of the model.
    """
    ours, theirs = options.get('text_b'), recorded.get('text_b')
    if None not in (theirs, ours) and bool(theirs) != bool(ours):
        fix = f'name the second text, such as --config.task.text_b={theirs}' if theirs else 'leave it empty'
        expected = f'{"pairs" if theirs else "single texts"}, as in {path}'
        raise UserError('config.task.text_b', repr(ours), expected, fix)


@dataclasses.dataclass(frozen=True)
class EvaluatedTask:
    """A fine-tuned model and the splits to evaluate it on.

    Attributes:
      params: The parameters on the mesh.
      splits: {name: split}, the splits to evaluate on.
      step: The step of the checkpoint; None if the model does not come from a checkpoint.
      finished: Whether this is the final model of a run.
    """

    task_model: TaskModel
    params: Any
    splits: Mapping[str, TaskSplit]
    step: int | None
    finished: bool

    @property
    def data(self) -> TaskData:
        """The data of the task."""
        return self.task_model.data

    @property
    def thresholds_tuned(self) -> bool:
        """Whether the thresholds are already tuned on dev for this model."""
        return self.finished and self.data.thresholds_tuned

    def facts(self, folder: pathlib.Path) -> dict[str, Any]:
        """Returns the facts in FOLDER/results.json that identify the model. The final model of a run has no step."""
        settings = self.data.settings
        facts: dict[str, Any] = {'init': settings.init, 'use_checkpoint': settings.use_checkpoint}
        if self.step is not None and not self.finished:
            facts[STEP] = self.step
        trial = exported_trial(folder)
        return {**facts, 'trial': trial} if trial else facts

    def predictions(self, split: TaskSplit) -> Sequence[Any]:
        """Returns a prediction for each record."""
        return self.task_model.predictions(self.params, split)


def load_task(
    settings: FinetuningSettings,
    folder: pathlib.Path,
    splits_of: Callable[[TaskData], dict[str, TaskSplit]] | None = None,
) -> EvaluatedTask:
    """Loads the model of a finished or unfinished run, or the model of config.init if the workdir has no run.

    Args:
      settings: The result of `evaluation_settings`, or the settings of the result of `merge_run_config`.
      splits_of: A function from the task data, whose labels are known, to the splits to evaluate on. None if the model
        is only exported, or if the caller has other inputs.

    Raises:
      UserError: Neither the workdir nor config.init has a model for this task, or config.step names no checkpoint.
    """
    settings = dataclasses.replace(settings, zero1='off', tracker='')  # nothing is trained
    settings.check()
    mesh = make_mesh(settings.mesh_axes, claim_devices())
    data = _task_data(settings, folder)
    splits, shapes = {}, ()
    if splits_of is not None:
        settings.check_memory(data.encoder, mesh, training=False)
        splits = splits_of(data)
        rows = list(splits.values())
        length_count = settings.max_padded_lengths or data.best_length_count(rows, 1, training=False)
        shapes = data.padded_lengths(rows, length_count)
    task_model = TaskModel(data, mesh, shapes)
    params, step = _params(data, task_model.setup, folder)
    # The run has tuned its thresholds for the model that the recorded config.use_checkpoint selects.
    used = read_json_or_none(folder / 'config.json', lambda config: config['use_checkpoint']) or settings.use_checkpoint
    is_final = not settings.step and settings.use_checkpoint == used
    evaluated = EvaluatedTask(task_model, params, splits, step, data.finished and is_final)
    if not evaluated.thresholds_tuned:
        restore_thresholds(data, splits, evaluated.facts(folder), folder)
    return evaluated


def restore_thresholds(data: TaskData, splits: Collection[str], facts: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Restores the thresholds that run=evaluate has tuned for a model, or prints that they may not be tuned.

    Does nothing if this command evaluates `splits` with dev, because it then tunes the thresholds. `facts` are the
    facts in FOLDER/results.json that identify the model.
    """
    task, path, state = data.task, folder / RESULTS, data.task.learned_state()
    names = [name for name in state if name in task.thresholds]
    if not names or (data.settings.run == 'evaluate' and 'dev' in splits):
        return
    results = read_recorded_results(path) if path.exists() else {'splits': {}}
    # The dev split of the run's own data has priority, then the data that were evaluated last.
    sections = [results, *reversed(results.get(OTHER_DATA, {}).values())] if is_about(results, facts) else []
    dev = next((section['splits']['dev'] for section in sections if 'dev' in section['splits']), {})
    if all(name in dev for name in names):
        task.restore({**state, **{name: dev[name] for name in names}})
        data.thresholds_tuned = True
        return
    if data.settings.ensemble and 'ensemble' not in facts:
        return  # a member; `load_models` prints the line once, for the ensemble
    values = ', '.join(f'{name} {state[name]:g}' for name in names)
    fix = 'to tune it, first use --config.run=evaluate --config.split=dev'
    print(f'{values} may not be tuned for this model; {fix} with the same model options, such as config.step')


def _task_data(settings: FinetuningSettings, folder: pathlib.Path) -> TaskData:
    """Returns the data of the task, with the labels and thresholds of task.json if there is such a file.

    Without it, the labels are those in the training data or, without data, those in config.json of config.init.
    """
    exported = exported_model(folder)
    has_model = exported is not None or has_checkpoints(folder)
    if not has_model and (folder / SWEEP).exists():
        best = folder / TRIALS / read_json_object(folder / SWEEP, 'start the sweep again')['best']
        fix = f'remove {best}, and start the sweep again: it trains and exports this run again'
        raise UserError('--workdir', f'the sweep {folder} without an export', 'the export of its best run', fix)
    if not has_model and (folder / 'config.json').exists():
        fix = 'start the training again, and wait for its first checkpoint'
        raise UserError('--workdir', f'no model in {folder} yet', 'a checkpoint or an export', fix)
    if not has_model and not settings.init:
        fix = 'fine-tune first, or name a fine-tuned model with --config.init'
        raise UserError('--workdir', f'no model in {folder}', 'the workdir of a fine-tuning run', fix)
    source = (exported or folder) if has_model else pathlib.Path(huggingface_directory(settings.init))
    files = (f / TASK_FILE for f in (folder, source))
    task_file = next((file for file in files if has_task_file(file, settings.task['kind'])), None)
    facts = read_recorded_task(task_file, settings.build_task()) if task_file else None
    if facts:
        choices = {name: getattr(settings.model, name) for name in fields_of(FieldKind.EXECUTION)}
        encoder = BertConfig(**{**facts['encoder'], **choices})
    else:
        encoder = read_encoder_config(settings, huggingface_directory(settings.init) if has_model else str(source))
    tokenizer = load_workdir_tokenizer(folder) if has_model else load_task_tokenizer(settings, str(source), encoder)
    data = TaskData(settings, folder, tokenizer, encoder, str(source), facts)
    if not (data.task.complete or has_model or settings.data or settings.task.get('dataset')):
        theirs = build_task_for_class(read_source(source).values, settings.seq_len, str(source))
        if type(theirs) is type(data.task):
            data.task.restore(theirs.learned_state())
    if not data.task.complete:  # the model has no task.json, so the labels come from the training data
        data.learn()
        if has_model:
            _check_labels(data, folder)
    return data


def _check_labels(data: TaskData, folder: pathlib.Path) -> None:
    """Raises a UserError if the labels in the training data differ from those that the run has recorded."""
    path = folder / 'config.json'
    trained = read_recorded_config(path, data.settings.task['kind']).get('fingerprints', {}).get('labels')
    labels = ', '.join(data.task.labels)
    if trained is not None and labels != trained:
        fix = 'give the data that the model was trained on'
        raise UserError('config.data', f'the labels {labels}', f'{trained}, as in {path}', fix)


def _params(data: TaskData, setup: Setup, folder: pathlib.Path) -> tuple[Any, int | None]:
    """Returns the parameters and the step of the checkpoint that config.step and config.use_checkpoint select.

    Without checkpoints, the parameters come from the export or from config.init, and the step is None. Raises a
    UserError if there is no such checkpoint, or if the export or config.init lacks the head of the task.
    """
    settings = data.settings
    if (folder / 'checkpoints').is_dir():
        saved = Checkpoints(folder / 'checkpoints', keep=settings.checkpoint_keep, read_only=True)
        with contextlib.closing(saved) as checkpoints, mesh_context(setup.mesh):
            checkpoint = checkpoints.select(settings.step, best=settings.use_checkpoint == 'best')
            if checkpoint is not None:
                return checkpoints.restore_params(checkpoint, setup.state.params), checkpoint.position.step
    elif settings.step:
        fix = 'leave config.step at 0'
        raise UserError('config.step', str(settings.step), f'0, because {folder} has no checkpoints', fix)
    source, task = data.source, data.task
    imported = load_task_model(source, setup.module, task.head, id2label=task.huggingface().get('id2label'))
    missing = [path for path in imported.missing if path.split('/')[0] not in ('encoder', 'pooler')]
    if missing:
        fix = 'fine-tune it first, or name a model that is fine-tuned to this task'
        if imported.head_note and 'labels' in settings.task:  # the data may lack a label
            fix = f'list the labels of all its outputs in config.task.labels, in their order, or {fix}'
        raise UserError(source, imported.describe_missing(missing), f'a model fine-tuned to {task.name}', fix)
    print(imported.describe(source, 'using'))
    return put_params(imported.params, setup.state), None
