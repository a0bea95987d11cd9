"""A Hugging Face directory as a Source."""

import functools

from etils import epath

from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.source import Source
from bertjax.files.whole import read_json_object

CONFIG = 'config.json'


def recognises(directory: epath.Path) -> bool:
    """Whether there is a config.json."""
    return (directory / CONFIG).exists()


def read(directory: epath.Path) -> Source:
    """See `Format`."""
    values = read_json_object(directory / CONFIG, 'copy the directory again')
    return Source(str(directory), str(directory / CONFIG), values, functools.partial(read_tensors, directory))
