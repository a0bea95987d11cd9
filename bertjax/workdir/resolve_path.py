"""What kind a path, or a name, is that a user gives for a model."""

import enum
import pathlib

from bertjax.convert.formats import is_model
from bertjax.convert.hub import hub_name
from bertjax.files.small_files import read_json_or_none
from bertjax.workdir.exports import exported_model
from bertjax.workdir.lock import has_checkpoints


class PathKind(enum.Enum):
    """What is there, in the order in which it is looked for."""

    MODEL = 'the directory of a model, of any format of convert/formats.py'
    EXPORTED = 'a workdir with an export'
    CHECKPOINTS = 'a workdir with checkpoints, and no export'
    BEGUN = 'a workdir without a model yet'
    HUB = 'nothing here, but a name that the hub may have'
    NOTHING = 'nothing that is a model'


def classify_path(path: str) -> PathKind:
    """What a path is, local or remote, or else a name; the hub is not asked."""
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
