"""What kind a path, or a name, is that a user gives for a model."""

import enum
import pathlib

from bertjax.convert.formats import is_model
from bertjax.convert.hub import hub_name
from bertjax.experiment.exports import exported_model
from bertjax.experiment.workdir import has_checkpoints
from bertjax.files.whole import read_json_or_none


class Kind(enum.Enum):
    """What is there, in the order in which it is looked for."""

    MODEL = 'the directory of a model, of any format of convert/formats.py'
    EXPORTED = 'a workdir with an export'
    CHECKPOINTS = 'a workdir with checkpoints, and no export'
    BEGUN = 'a workdir without a model yet'
    HUB = 'nothing here, but a name that the hub may have'
    NOTHING = 'nothing that is a model'


def kind_of(path: str) -> Kind:
    """What a path is, local or remote, or else a name; the hub is not asked."""
    folder = pathlib.Path(path)
    if (folder / 'config.json').exists() and (folder / 'model.safetensors').exists():
        return Kind.MODEL
    if exported_model(folder) is not None:
        return Kind.EXPORTED
    if has_checkpoints(folder):
        return Kind.CHECKPOINTS
    if read_json_or_none(folder / 'config.json', lambda facts: {'run', 'model'} <= facts.keys()):
        return Kind.BEGUN
    if is_model(path):
        return Kind.MODEL
    return Kind.HUB if hub_name(path) and not folder.exists() else Kind.NOTHING
