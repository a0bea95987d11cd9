"""What a run left behind, finished or not: its config, its model with parameters, as other verbs find them."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bertjax.checkpoint import Checkpoints, Saved
from bertjax.config import flatten, plain
from bertjax.convert.huggingface.config import check_exportable
from bertjax.convert.huggingface.load import load_task_model, read_config
from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import FinetuningSettings
from bertjax.experiment.own_tokenizer import load_own
from bertjax.experiment.pretraining import build_pretraining_setup
from bertjax.experiment.pretraining_settings import PretrainingSettings
from bertjax.experiment.task_data import LEARNED, Split, TaskData
from bertjax.experiment.task_setup import TaskSetup
from bertjax.experiment.text import huggingface_directory
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.tasks.registry import keys, options
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.train.state import place_params

# Keys always taken from the command line's config; the others are the workdir's.
ASKED = ('run', 'data', 'split', 'input', 'eval_batch_size', 'shapes', 'mesh', 'export')
# Taken from it only if the command line sets them, as are the task's options that decide 'reading'.
CHANGEABLE = ('select', *(f'model.{name}' for name in fields_of(FieldKind.EXECUTION)))
_FIXED = re.compile(r'task\..*|seq_len|tokenizer|init')  # of the others, those that the model depends on


def config_of_run(config: ConfigDict, folder: pathlib.Path, given: Collection[str] = ()) -> ConfigDict:
    """The config that the workdir's model was trained with, under what the command line asks for.

    The recipe's own where the workdir has no run: the model is then that of config.init.

    Args:
      config: the recipe's.
      folder: the workdir.
      given: keys that the command line sets, such as 'task.dev_file'.

    Raises:
      UserError: the recipe of another kind of task, or a key that the command line sets and that cannot be changed.
    """
    path = folder / 'config.json'
    if not path.exists():
        return config
    saved = json.loads(path.read_text(encoding='utf-8'))
    _check_kind(saved.get('task', {}), config.task.kind, path)
    own = _from_json(saved)
    changeable = (*CHANGEABLE, *keys(config.task.kind, 'reading'))
    for key in [*ASKED, *(key for key in changeable if key in given)]:
        config_path.set_value(key, own, config_path.get_value(key, config), accept_new_attributes=True)
    own.data = config.data or saved['data']
    ours, theirs = flatten(config), flatten(saved)
    for key in sorted(given):
        if key in changeable or not _FIXED.fullmatch(key):
            continue
        # A recipe of one's own need not have all options of its kind.
        usual = None if key in theirs else plain(options(config.task.kind)[key.removeprefix('task.')].default)
        saved_value = theirs.get(key, usual)
        if ours[key] != saved_value:
            mend = 'leave it out, or give the workdir of another run'
            raise UserError(f'config.{key}', repr(ours[key]), f'{saved_value!r}, as in {path}', mend)
    return own


def _check_kind(task: Mapping[str, Any], kind: str, path: pathlib.Path) -> None:
    if task.get('kind') != kind:
        expected = f'{task.get("kind")!r}, as in {path}'
        raise UserError('config.task.kind', repr(kind), expected, 'give the recipe of this model')


def _from_json(saved: Any) -> Any:
    if isinstance(saved, dict):
        return ConfigDict({key: _from_json(value) for key, value in saved.items()})
    return tuple(saved) if isinstance(saved, list) else saved


@dataclasses.dataclass(frozen=True)
class SavedTask:
    """A model that was tuned to a task, with its parameters on the mesh, and what it is to be tried on."""

    model: TaskSetup
    params: Any
    splits: Mapping[str, Split]


def load_task(
    settings: FinetuningSettings, folder: pathlib.Path, splits_of: Callable[[TaskData], dict[str, Split]]
) -> SavedTask:
    """The workdir's model, or that of config.init.

    Args:
      settings: of what `config_of_run` gave.
      folder: the workdir.
      splits_of: reads and tokenises, when the task knows its labels.

    Raises:
      UserError: neither has a model for this task.
    """
    settings.check()
    mesh = make_mesh(settings.mesh, claim_devices())
    data = _task_data(settings, folder)
    splits = splits_of(data)
    model = TaskSetup(data, mesh, list(splits.values()))
    return SavedTask(model, _params(model, folder), splits)


def _task_data(settings: FinetuningSettings, folder: pathlib.Path) -> TaskData:
    """The task as the workdir's run, or the directory of config.init, learned it."""
    trained = (folder / 'checkpoints').is_dir() or (folder / 'export' / 'hf').is_dir()
    source = folder / 'export' / 'hf' if trained else None
    if not trained:
        if not settings.init:
            mend = 'fine-tune first, or name a fine-tuned model with --config.init'
            raise UserError('--workdir', f'no model in {folder}', 'the workdir of a fine-tuning', mend)
        source = pathlib.Path(huggingface_directory(settings.init))
    learned = next((f / LEARNED for f in (folder, source) if (f / LEARNED).is_file()), None)
    if learned is None and trained:
        raise UserError(str(folder), f'no {LEARNED}', 'a finished fine-tuning', 'let it finish: start it again')
    facts = json.loads(learned.read_text(encoding='utf-8')) if learned else None
    if facts:
        _check_kind(facts['task'], settings.task['kind'], learned)
        execution = fields_of(FieldKind.EXECUTION)
        choices = {name: value for name, value in settings.model_choices.items() if name in execution}
        encoder = BertConfig(**{**facts['encoder'], **choices})
    else:
        encoder = read_config(source, **settings.model_choices)
    tokenizer = load_own(folder) if trained else load_tokenizer(settings.tokenizer or str(source))
    data = TaskData(settings, folder, tokenizer, encoder, str(source), facts and facts['learned'])
    if not data.task.complete:  # somebody else's model: its labels are those of the training records
        data.task.learn(data.task.records('train'))
    return data


def _params(model: TaskSetup, folder: pathlib.Path) -> Any:
    """The parameters of the newest checkpoint (the best with select='best'), else those of the export or config.init.

    Raises:
      UserError: a directory whose head is not this task's.
    """
    settings, setup = model.settings, model.setup
    if (folder / 'checkpoints').is_dir():
        checkpoints = Checkpoints(folder / 'checkpoints', keep=settings.checkpoint_keep)
        try:
            saved = checkpoints.latest()
            if saved is not None:
                step = checkpoints.best() if settings.select == 'best' else None
                with mesh_context(setup.mesh):
                    return checkpoints.restore(saved.position.step if step is None else step, setup.state).params
        finally:
            checkpoints.close()
    source, task = model.data.source, model.data.task
    imported = load_task_model(source, setup.model, task.head, id2label=task.huggingface().get('id2label'))
    fresh = [path for path in imported.missing if path.split('/')[0] not in ('encoder', 'pooler')]
    if fresh:
        mend = 'fine-tune it first, or name a model that was tuned to this task'
        raise UserError(source, f'no {", ".join(fresh)}', f'a model tuned to {task.name}', mend)
    return place_params(imported.params, setup.state)


@dataclasses.dataclass(frozen=True)
class SavedPretraining:
    """The newest checkpoint of a pre-training, its parameters on the mesh."""

    model: BertConfig
    tokenizer: Tokenizer
    params: Any
    saved: Saved


def load_pretraining(settings: PretrainingSettings, folder: pathlib.Path) -> SavedPretraining:
    """The workdir's newest checkpoint; the recipe must be the one that it was trained with.

    Raises:
      UserError: no checkpoint, a recipe of another model, or one that cannot be exported.
    """
    tokenizer = load_own(folder)
    model = settings.model(tokenizer.vocab_size)
    check_exportable(model)
    checkpoints = Checkpoints(folder / 'checkpoints', keep=settings.checkpoint_keep)
    try:
        saved = checkpoints.latest()
        if saved is None:
            raise UserError(str(folder / 'checkpoints'), 'no finished checkpoint', 'at least one', 'train first')
        for name in fields_of(FieldKind.ARCHITECTURE, FieldKind.LAYOUT):
            ours, value = getattr(model, name), saved.config['model'].get(name, getattr(model, name))
            if ours != value:
                mend = 'give the recipe of this workdir'
                raise UserError(f'config.model.{name}', str(ours), f'{value}, as in the checkpoint', mend)
        setup = build_pretraining_setup(settings, model, make_mesh(settings.mesh))
        with mesh_context(setup.mesh):
            state = checkpoints.restore(saved.position.step, setup.state)
    finally:
        checkpoints.close()
    return SavedPretraining(model, tokenizer, state.params, saved)
