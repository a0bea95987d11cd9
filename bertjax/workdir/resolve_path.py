"""Resolves a path or a hub name to the folder of a model."""

import enum
import functools
import pathlib

from bertjax.checkpoint.steps import finished_steps
from bertjax.convert.google.read import NAME as GOOGLE_NAME
from bertjax.convert.hub import hub_name, moved_name, pull
from bertjax.convert.load import is_model
from bertjax.errors import UserError, printable
from bertjax.files.paths import display_path
from bertjax.files.small_files import read_json_or_none
from bertjax.remote.paths import user_path
from bertjax.workdir.exports import exported_model
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.tokenizer import check_export


class PathKind(enum.Enum):
    """The kind of a path."""

    MODEL = 'a model directory in any format of convert/load.py'
    EXPORT = 'a workdir with an export'
    CHECKPOINTS = 'a workdir with checkpoints, but no export'
    NO_MODEL_YET = 'a workdir without a model'
    HUB = 'a name that may exist on the hub and is not a local path'
    UNKNOWN = 'any other path'


def classify_path(path: str) -> PathKind:
    """Returns the kind of a local path or a hub name. The function does not contact the hub."""
    folder = pathlib.Path(path)
    if (folder / 'config.json').exists() and (folder / 'model.safetensors').exists():
        return PathKind.MODEL
    if exported_model(folder) is not None:
        return PathKind.EXPORT
    if has_checkpoints(folder):
        return PathKind.CHECKPOINTS
    if read_json_or_none(folder / 'config.json', lambda facts: {'run', 'model'} <= facts.keys()):
        return PathKind.NO_MODEL_YET
    if is_model(path):
        return PathKind.MODEL
    return PathKind.HUB if hub_name(path) and not folder.exists() else PathKind.UNKNOWN


def _note_newer_checkpoint(folder: pathlib.Path, exported: pathlib.Path) -> None:
    """Prints a line if the run was extended and interrupted after its export."""
    steps = finished_steps(folder / 'checkpoints')
    is_unfinished = read_json_or_none(folder / 'config.json', lambda facts: steps[-1] < facts['steps'])
    if is_unfinished and (folder / 'checkpoints' / str(steps[-1])).stat().st_mtime > exported.stat().st_mtime:
        fix = 'run the command of its training with --config.run=export to update it'
        _print_once(f'the export of {display_path(folder)} is older than its checkpoint {steps[-1]}: {fix}')


@functools.cache  # a run resolves its model several times
def _print_once(line: str) -> None:
    print(printable(line))


def huggingface_directory(init: str, where: str = 'config.init') -> str:
    """Returns a folder with a model: `init` itself, the export of a workdir, or a download from the hub.

    Args:
      init: A model directory in any format of convert/load.py, a bertjax workdir, or the name of a model on the hub.
      where: The config key, flag or function that received `init`, for error messages.

    Raises:
      UserError: `init` is none of these, a workdir has no export, or its export has another vocabulary than its run.
    """
    if not init:
        option = f'--{where}=' if where.startswith('config.') else ''
        fix = f'for example {option}out/tiny, or {option}google-bert/bert-base-uncased'
        raise UserError(where, 'nothing', "a bertjax workdir, a model's directory, or org/name on the hub", fix)
    init = str(user_path(init, where))
    kind = classify_path(init)
    if kind is PathKind.MODEL:
        # The folder of a checkpoint of google-research/bert may have a task.json, or name another checkpoint.
        folder = pathlib.Path(init.removesuffix(f'/{GOOGLE_NAME}'))
        return init if any((folder / name).exists() for name in ('config.json', 'checkpoint')) else str(folder)
    if kind is PathKind.EXPORT:
        exported = exported_model(pathlib.Path(init))
        check_export(pathlib.Path(init), exported)
        _note_newer_checkpoint(pathlib.Path(init), exported)
        return str(exported)
    if kind is PathKind.HUB:
        return pull(init, where)
    if kind is PathKind.CHECKPOINTS:
        fix = 'export it first: run the command of its training with --config.run=export'
        raise UserError(where, f'{init}, a workdir without an export', 'an exported model', fix)
    if kind is PathKind.NO_MODEL_YET:
        fix = 'run the command of its training again, until it ends'
        raise UserError(where, f'{init}, a workdir without a model yet', 'a checkpoint or an export', fix)
    path, fix = pathlib.Path(init), 'name one of these; --config.run=export exports a finished run'
    if not path.exists():
        found, moved = f'{init}, which does not exist', moved_name(init)
        fix = f'did you mean {moved}?' if moved else fix
    else:
        found, kinds = f'{init}, which is not a model', (PathKind.MODEL, PathKind.EXPORT, PathKind.CHECKPOINTS)
        # The path may be a file of a model's directory, or a folder of a workdir such as checkpoints/20.
        model = next((folder for folder in path.absolute().parents[:2] if classify_path(str(folder)) in kinds), None)
        fix = f'did you mean {model}?' if model else fix
    expected = 'a Hugging Face, google-research/bert or bertjax model directory, a bertjax workdir, or org/name'
    raise UserError(where, found, expected, fix)
