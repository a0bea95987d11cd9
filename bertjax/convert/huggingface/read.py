"""A Hugging Face directory as a Source."""

import numpy as np
from etils import epath

from bertjax.convert.huggingface.families import BERT, POSITIONS, family_read
from bertjax.convert.huggingface.tensors import read_tensors
from bertjax.convert.source import Source
from bertjax.files.whole import read_json_object

CONFIG = 'config.json'


def recognises(directory: epath.Path) -> bool:
    """Whether there is a config.json."""
    return (directory / CONFIG).exists()


def read(directory: epath.Path) -> Source:
    """See `Format`; a relative of BERT becomes one."""
    where = str(directory / CONFIG)
    values = read_json_object(directory / CONFIG, 'copy the directory again')
    family = family_read(values.get('model_type', 'bert'))
    called = dict(family.keys)
    if family is not BERT and isinstance(values.get('architectures'), list) and values['architectures']:
        called['architectures'] = str(values['architectures'][0])

    def tensors() -> dict[str, np.ndarray]:
        found, names = read_tensors(directory, family.bert_name)
        called.update({} if family is BERT else names)
        if POSITIONS in found:
            found[POSITIONS] = found[POSITIONS][family.unused_positions(values, where) :]
        return found

    return Source(str(directory), where, family.bert_values(values, where), tensors, called)
