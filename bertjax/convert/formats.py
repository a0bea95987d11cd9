"""The formats that are read, in the order in which a directory is tried."""

from etils import epath

from bertjax.convert import orbax
from bertjax.convert.google import read as google
from bertjax.convert.huggingface import read as huggingface
from bertjax.convert.source import CheckpointSource, Format
from bertjax.errors import UserError

FORMATS: tuple[Format, ...] = (huggingface, google, orbax)


def is_model(directory: epath.PathLike) -> bool:
    """Whether any format recognises a directory."""
    return any(kind.recognises(epath.Path(directory)) for kind in FORMATS)


def read_source(directory: epath.PathLike) -> CheckpointSource:
    """The model that a directory holds, by the first format that recognises it.

    Raises:
      UserError: no format does; see `Format.read`.
    """
    path = epath.Path(directory)
    for kind in FORMATS:
        if kind.recognises(path):
            return kind.read(path)
    fix = "give a directory that transformers' save_pretrained, google-research/bert or our export wrote"
    raise UserError(str(path), f'no {huggingface.CONFIG} or {google.CONFIG}', 'the directory of a model', fix)
