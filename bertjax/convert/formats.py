"""The model formats that can be read, in the order in which they are tried.

A format is a module with two functions. `recognises(directory)` returns whether a directory has the file names of the
format. `read(directory)` reads the description of a model as a `CheckpointSource`, and raises a UserError if it is
damaged or the model is not a BERT.
"""

from etils import epath

from bertjax.convert import orbax
from bertjax.convert.google import read as google
from bertjax.convert.huggingface import read as huggingface
from bertjax.convert.source import CheckpointSource
from bertjax.errors import UserError

FORMATS = (huggingface, google, orbax)


def is_model(directory: epath.PathLike) -> bool:
    """Returns whether any format recognises a directory."""
    return any(model_format.recognises(epath.Path(directory)) for model_format in FORMATS)


def read_source(directory: epath.PathLike) -> CheckpointSource:
    """Reads a model with the first format that recognises its directory.

    Raises:
      UserError: No format recognises the directory, or the model cannot be read.
    """
    path = epath.Path(directory)
    for model_format in FORMATS:
        if model_format.recognises(path):
            return model_format.read(path)
    fix = "give a directory that transformers' save_pretrained, google-research/bert or an export of bertjax wrote"
    raise UserError(str(path), f'no {huggingface.CONFIG} or {google.CONFIG}', 'the directory of a model', fix)
