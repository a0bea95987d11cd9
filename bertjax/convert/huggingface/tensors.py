"""Tensors of a Hugging Face directory, under the names that current transformers uses."""

import math
import os
import re

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from bertjax.errors import UserError
from bertjax.files.whole import read_json_object, read_whole

MODEL, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_DTYPES = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
_AGAIN = 'copy the directory again'
_INTEGERS = ('I8', 'I16', 'I32', 'I64', 'U8', 'U16', 'U32', 'U64', 'BOOL')
# Buffers that older versions saved beside the parameters: a range and zeros.
_BUFFERS = ('bert.embeddings.position_ids', 'bert.embeddings.token_type_ids')
# (name, the tensor it is tied to): saved by some programs; in a BERT both are equal.
_TIED = (
    ('cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
    ('cls.predictions.decoder.bias', 'cls.predictions.bias'),
)


def read_tensors(directory: epath.Path) -> dict[str, np.ndarray]:
    """All tensors as float32, named as in transformers' BertForPreTraining.

    A missing `bert.` prefix (BertModel) is added, LayerNorm's `gamma` and `beta` become `weight` and `bias`, and the
    output embedding is dropped after a check that it equals the input embedding.

    Raises:
      UserError: no safetensors, a damaged file, a type other than float, untied embeddings.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in _files(directory):
        for name, x in _read(file).items():
            tensors[_modern(name)] = x
    for name in _BUFFERS:
        tensors.pop(name, None)
    for name, source in _TIED:
        if name not in tensors:
            continue
        tied = tensors.pop(name)
        if not np.array_equal(tensors.setdefault(source, tied), tied):
            mend = 'give a BERT whose embeddings are tied'
            raise UserError(f'{directory}: {name}', 'other values', f'those of {source}', mend)
    return tensors


def _files(directory: epath.Path) -> list[epath.Path]:
    if (directory / MODEL).exists():
        return [directory / MODEL]
    if not (directory / INDEX).exists():
        found = sorted(file.name for file in directory.iterdir()) if directory.exists() else []
        mend = 'load it in transformers and save it again with save_pretrained (it writes safetensors)'
        raise UserError(str(directory), ', '.join(found[:6]) or 'nothing', MODEL, mend)
    table = read_json_object(directory / INDEX, _AGAIN).get('weight_map')
    names = list(table.values()) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and name == os.path.basename(name) != '' for name in names):
        expected = 'a weight_map, with the file of each tensor'
        raise UserError(str(directory / INDEX), 'something else', expected, _AGAIN)
    shards = sorted(set(names))
    for shard in shards:
        if not (directory / shard).exists():
            raise UserError(str(directory / shard), 'nothing', f'a shard that {INDEX} names', _AGAIN)
    return [directory / shard for shard in shards]


def _read(file: epath.Path) -> dict[str, np.ndarray]:
    try:
        found = safetensors.deserialize(read_whole(file, 'a whole safetensors file', _AGAIN))
    except safetensors.SafetensorError as error:
        raise UserError(str(file), f'no safetensors ({error})', 'a whole safetensors file', 'copy it again') from None
    tensors = {}
    for name, view in found:
        if view['dtype'] in _INTEGERS and _modern(name) in _BUFFERS:
            continue
        if view['dtype'] not in _DTYPES:
            mend = 'save it in float32: quantised weights cannot start a run'
            raise UserError(f'{file}: {name}', f'type {view["dtype"]}', 'one of ' + ', '.join(_DTYPES), mend)
        x = np.frombuffer(view['data'], _DTYPES[view['dtype']], math.prod(view['shape'])).reshape(view['shape'])
        tensors[name] = x.astype(np.float32)
    return tensors


def _modern(name: str) -> str:
    name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', name)
    name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
    return f'bert.{name}' if re.match(r'(embeddings|encoder|pooler)\.', name) else name
