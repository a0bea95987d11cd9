"""Resolution of a path or a hub name to the folder of a model."""

import enum
import pathlib

from bertjax.convert.formats import is_model
from bertjax.convert.hub import hub_name, moved_name, pull
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.remote.paths import user_path
from bertjax.workdir.exports import exported_model
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.tokenizer import check_export


class PathKind(enum.Enum):
    """The kinds of a path, in the order in which they are checked."""

    MODEL = 'the directory of a model, of any format of convert/formats.py'
    EXPORTED = 'a workdir with an export'
    CHECKPOINTS = 'a workdir with checkpoints, and no export'
    BEGUN = 'a workdir without a model yet'
    HUB = 'nothing here, but a name that the hub may have'
    NOTHING = 'nothing that is a model'


def classify_path(path: str) -> PathKind:
    """Classifies a path, local or remote, or a name, without contacting the hub."""
    folder = pathlib.Path(path)
    if (folder / 'config.json').exists() and (folder / 'model.safetensors').exists():
        return PathKind.MODEL
    if exported_model(folder) is not None:
        return PathKind.EXPORTED
    if has_checkpoints(folder):
        return PathKind.CHECKPOINTS
    if read_json_or_none(folder / 'config.json', lambda facts: {'run', 'model'} <= facts.keys()):
        return PathKind.BEGUN
    if is_model(path):
        return PathKind.MODEL
    return PathKind.HUB if hub_name(path) and not folder.exists() else PathKind.NOTHING


def huggingface_directory(init: str, where: str = 'config.init') -> str:
    """Returns the folder of the model that `init` names.

    Args:
      init: The folder of a model in any format of convert/formats.py, a bertjax workdir (its export is returned), or
        the name of a model on the hub (it is downloaded).
      where: The config key that holds `init`, for error messages.

    Raises:
      UserError: `init` is none of these.
    """
    if not init:
        fix = f'for example --{where}=out/tiny, or --{where}=google-bert/bert-base-uncased'
        raise UserError(where, 'nothing', "a bertjax workdir, a model's directory, or org/name on the hub", fix)
    init = str(user_path(init, where))
    kind = classify_path(init)
    if kind is PathKind.MODEL:
        return init
    if kind is PathKind.EXPORTED:
        exported = exported_model(pathlib.Path(init))
        check_export(pathlib.Path(init), exported)
        return str(exported)
    if kind is PathKind.HUB:
        return pull(init, where)
    if kind is PathKind.CHECKPOINTS:
        fix = 'export it first: the command of its training with --config.run=export'
        raise UserError(where, f'{init}, a workdir without an export', 'a saved model', fix)
    if kind is PathKind.BEGUN:
        fix = 'start the training again: a model is there from its first checkpoint on'
        raise UserError(where, f'{init}, a workdir without a model yet', 'a checkpoint or an export', fix)
    moved = '' if pathlib.Path(init).exists() else moved_name(init)
    raise UserError(
        where,
        init,
        'a directory of Hugging Face, of google-research/bert or of our export, a bertjax workdir, or org/name',
        f'did you mean {moved}?' if moved else 'give such a folder; --config.run=export writes it for a finished run',
    )
