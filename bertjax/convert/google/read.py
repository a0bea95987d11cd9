"""Reads a checkpoint of google-research/bert (bert_config.json and TensorFlow files) as a `CheckpointSource`."""

import dataclasses
import functools
import re

import numpy as np
from etils import epath

from bertjax.convert.google.bundle import INDEX, Bundle
from bertjax.convert.google.names import HEADS, from_google, is_slot, transpose_kernel
from bertjax.convert.huggingface.config import from_json
from bertjax.convert.huggingface.families import BERT, FIELDS
from bertjax.convert.source import CheckpointSource, StoredTensor
from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes, read_json_object, read_json_or_none

CONFIG = 'bert_config.json'
NAME = 'bert_model.ckpt'  # The name of the published checkpoints.
GELU = 'gelu_form'  # Our additional key in bert_config.json: 'erf' means the exact form of GELU.
_NEWEST = 'checkpoint'  # The file in which TensorFlow records the newest checkpoint of a folder.
# 'gelu' means the tanh form in google-research/bert (modeling.py), but the exact form in transformers.
_FAMILY = dataclasses.replace(BERT, activations={'gelu': 'gelu_tanh', 'relu': 'relu'})
_AGAIN = 'copy the folder again'


def recognizes(path: epath.Path) -> bool:
    """Returns whether a path is the prefix of a checkpoint, or a folder with bert_config.json."""
    return (path / CONFIG).exists() or _is_prefix(path)


def read(path: epath.Path) -> CheckpointSource:
    """Reads the description of a model as a `CheckpointSource`; see convert/load.py."""
    folder = path.parent if _is_prefix(path) else path
    config_path = folder / CONFIG
    if not config_path.exists():
        fix = 'copy the file, which has the sizes of the model, from the source of the checkpoint'
        raise UserError(str(config_path), 'nothing', 'the config of google-research/bert', fix)
    bundle = Bundle(path if _is_prefix(path) else find_newest(folder))
    values = {'model_type': 'bert', **read_json_object(config_path, _AGAIN)}
    fields = from_json(values, str(config_path), _FAMILY)
    if fields['mlp'] == 'gelu_tanh' and values.get(GELU) == 'erf':
        fields['mlp'] = 'gelu'
    heads = {name: bundle.shapes.get(f'{prefix}output_weights') for prefix, (name, _) in HEADS.items()}
    heads = {name: shape for name, shape in heads.items() if shape}
    if heads:
        values |= {'architectures': [*heads], 'num_labels': next(iter(heads.values()))[0]}
        # bert_config.json has no names of the outputs, but the task.json of an export has them.
        names = read_json_or_none(folder / 'task.json', lambda facts: dict(enumerate(facts['learned']['labels'])))
        values |= {'id2label': names} if names else {}
    names = [name for name in bundle.shapes if not is_slot(name)]
    slots = len(bundle.shapes) - len(names)
    return CheckpointSource(
        str(path),
        str(config_path),
        values,
        fields,
        functools.partial(_tensors, bundle, names),
        next(iter(heads), ''),
        FIELDS,
        unused_content=f'{slots} variables of the optimizer' if slots else '',
    )


def find_newest(folder: epath.Path) -> epath.Path:
    """Returns the prefix of the newest checkpoint of a folder.

    The file 'checkpoint' names the newest checkpoint. Without this file, the result is the checkpoint NAME, if it
    exists. Otherwise, the result is the only checkpoint, or the one with the largest step if all names have a step.
    Raises a UserError if there is no such checkpoint.
    """
    if (folder / _NEWEST).exists():
        data = read_bytes(folder / _NEWEST, 'the name of a checkpoint', _AGAIN, max_bytes=1 << 20)
        text = data.decode(errors='replace')
        match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
        # Only the last component of the path is used, because the folder may have been moved.
        prefix = folder / re.split(r'[/\\]', match.group(1))[-1] if match else None
        if prefix is None or not _is_prefix(prefix):
            fix = 'give the path of a checkpoint, without .index, or remove this file'
            found = (
                f'the checkpoint {prefix.name}, which is not in this folder' if prefix else 'no model_checkpoint_path'
            )
            raise UserError(str(folder / _NEWEST), found, 'the name of a checkpoint in this folder', fix)
        return prefix
    names = sorted(file.name.removesuffix(INDEX) for file in folder.iterdir() if file.name.endswith(INDEX))
    if NAME in names:
        return folder / NAME
    steps = {int(match.group(1)): name for name in names if (match := re.fullmatch(r'.*-(\d+)', name))}
    if steps and len(steps) == len(names):
        return folder / steps[max(steps)]
    if len(names) == 1:
        return folder / names[0]
    found = f'{len(names)} checkpoints, {", ".join(names[:4])}' if names else f'no {NAME}{INDEX}'
    fix = 'give the path of one checkpoint, without .index' if names else _AGAIN
    raise UserError(str(folder), found, 'one checkpoint of TensorFlow', fix)


def _is_prefix(path: epath.Path) -> bool:
    return bool(path.name) and (path.parent / (path.name + INDEX)).exists()


def _tensors(bundle: Bundle, names: list[str]) -> dict[str, StoredTensor]:
    tensors = {}
    for name in names:
        x = np.ascontiguousarray(transpose_kernel(name, bundle.read(name)).astype(np.float32))
        tensors[from_google(name)] = StoredTensor(name, 'float32', x)
    return tensors
