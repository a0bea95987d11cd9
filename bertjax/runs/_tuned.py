"""A model that was tuned to a task, as the verbs evaluate, predict and export find it in a workdir."""

import json
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bertjax.checkpoint import Checkpoints
from bertjax.config import flatten, plain
from bertjax.convert.huggingface.load import load_task_model, read_config
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.runs._task import LEARNED, Split, TaskData, check_numbers, padded_lengths
from bertjax.runs._text import huggingface_directory
from bertjax.runs._tuning import Tuning, build_tuning
from bertjax.tasks.registry import default_option
from bertjax.text.tokenizer import load_tokenizer
from bertjax.train.state import place_params

# Of the command line's config, when the rest is the workdir's: what to do, on what, and how much at a time.
ASKED = ('run', 'data', 'split', 'input', 'eval_batch_size', 'shapes', 'mesh', 'export')
# And where the command line sets them: which step; how exactly; where records are, and how they are read; how the
# answers are chosen.
CHANGEABLE = ('select', 'model.dtype')
CHANGEABLE += tuple(f'task.{name}' for name in ('train', 'dev', 'test', 'train_file', 'dev_file', 'test_file'))
CHANGEABLE += tuple(f'task.{name}' for name in ('text_a', 'text_b', 'label', 'columns', 'format', 'dataset'))
CHANGEABLE += tuple(f'task.{name}' for name in ('word_column', 'tag_column', 'comment', 'input_format'))
CHANGEABLE += ('task.n_best', 'task.max_answer')
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
    _check_kind(saved.get('task', {}), config, path)
    own = _from_json(saved)
    for key in [*ASKED, *(key for key in CHANGEABLE if key in given)]:
        config_path.set_value(key, own, config_path.get_value(key, config), accept_new_attributes=True)
    own.data = config.data or saved['data']
    ours, theirs = flatten(config), flatten(saved)
    for key in sorted(given):
        if key in CHANGEABLE or not _FIXED.fullmatch(key):
            continue
        # A recipe of one's own need not have all options of its kind.
        usual = plain(default_option(config.task.kind, key.removeprefix('task.'))) if key not in theirs else None
        saved_value = theirs.get(key, usual)
        if ours[key] != saved_value:
            mend = 'leave it out, or give the workdir of another run'
            raise UserError(f'config.{key}', repr(ours[key]), f'{saved_value!r}, as in {path}', mend)
    return own


def _check_kind(task: Mapping[str, Any], config: ConfigDict, path: pathlib.Path) -> None:
    if task.get('kind') != config.task.kind:
        expected = f'{task.get("kind")!r}, as in {path}'
        raise UserError('config.task.kind', repr(config.task.kind), expected, 'give the recipe of this model')


def _from_json(saved: Any) -> Any:
    if isinstance(saved, dict):
        return ConfigDict({key: _from_json(value) for key, value in saved.items()})
    return tuple(saved) if isinstance(saved, list) else saved


def data_of_run(config: ConfigDict, folder: pathlib.Path) -> TaskData:
    """The task as the workdir's run, or the directory of config.init, learned it.

    Raises:
      UserError: neither has a model for this task.
    """
    trained = (folder / 'checkpoints').is_dir() or (folder / 'export' / 'hf').is_dir()
    source = folder / 'export' / 'hf' if trained else None
    if not trained:
        if not config.init:
            mend = 'fine-tune first, or name a fine-tuned model with --config.init'
            raise UserError('--workdir', f'no model in {folder}', 'the workdir of a fine-tuning', mend)
        source = pathlib.Path(huggingface_directory(config.init))
    learned = next((f / LEARNED for f in (folder, source) if (f / LEARNED).is_file()), None)
    if learned is None and trained:
        raise UserError(str(folder), f'no {LEARNED}', 'a finished fine-tuning', 'let it finish: start it again')
    facts = json.loads(learned.read_text(encoding='utf-8')) if learned else None
    if facts:
        _check_kind(facts['task'], config, learned)
        choices = {key: config.model[key] for key in ('dtype', 'remat')}
        encoder = BertConfig(**{**facts['encoder'], **choices})
    else:
        encoder = read_config(source, **config.model)
    tokenizer = load_tokenizer(str(folder / 'tokenizer') if trained else config.tokenizer or str(source))
    data = TaskData(config, folder, tokenizer, encoder, str(source), facts and facts['learned'])
    if not data.task.complete:  # somebody else's model: its labels are those of the training records
        data.task.learn(data.task.records('train'))
    return data


def load_tuned(
    config: ConfigDict, folder: pathlib.Path, splits_of: Callable[[TaskData], dict[str, Split]]
) -> tuple[Tuning, Any, dict[str, Split]]:
    """The workdir's model, or that of config.init, with its parameters, and what it is to be tried on.

    Args:
      config: what `config_of_run` gave.
      folder: the workdir.
      splits_of: reads and tokenises, when the task knows its labels.
    """
    check_numbers(config)
    mesh = make_mesh(config.mesh, claim_devices())
    data = data_of_run(config, folder)
    splits = splits_of(data)
    features = [split.features for split in splits.values()]
    tuning = build_tuning(data, mesh, padded_lengths(data, features), features[0])
    return tuning, _params(tuning, folder), splits


def _params(tuning: Tuning, folder: pathlib.Path) -> Any:
    """The parameters of the newest checkpoint (the best with select='best'), else those of the export or config.init.

    Raises:
      UserError: a directory whose head is not this task's.
    """
    if (folder / 'checkpoints').is_dir():
        checkpoints = Checkpoints(folder / 'checkpoints', keep=tuning.config.checkpoint_keep)
        try:
            saved = checkpoints.latest()
            if saved is not None:
                step = checkpoints.best() if tuning.config.select == 'best' else None
                with mesh_context(tuning.mesh):
                    return checkpoints.restore(saved.position.step if step is None else step, tuning.state).params
        finally:
            checkpoints.close()
    source, task = tuning.data.source, tuning.data.task
    imported = load_task_model(source, tuning.model, id2label=task.huggingface()[1].get('id2label'))
    fresh = [path for path in imported.missing if path.split('/')[0] not in ('encoder', 'pooler')]
    if fresh:
        mend = 'fine-tune it first, or name a model that was tuned to this task'
        raise UserError(source, f'no {", ".join(fresh)}', f'a model tuned to {task.name}', mend)
    return place_params(imported.params, tuning.state)
