"""Tensors of a Hugging Face directory, under the names that current transformers gives those of a BERT."""

import io
import math
import os
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes, read_json_object

MODEL = 'model.safetensors'
_TORCH = 'pytorch_model.bin'
_DTYPES = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'BF16': jnp.bfloat16}
_AGAIN = 'copy the directory again'
# Buffers that older versions saved beside the parameters: a range and zeros.
_BUFFERS = ('bert.embeddings.position_ids', 'bert.embeddings.token_type_ids')
# (name, the tensor it is tied to): saved by some programs; in a BERT both are equal.
_TIED = (
    ('cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
    ('cls.predictions.decoder.bias', 'cls.predictions.bias'),
)


def read_tensors(
    directory: epath.Path, bert_name: Callable[[str], str]
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, str]]:
    """All tensors as float32, named as in transformers' BertForPreTraining.

    From model.safetensors or pytorch_model.bin, whole or in shards. A missing `bert.` prefix (BertModel) is added,
    LayerNorm's `gamma` and `beta` become `weight` and `bias`, and the output embedding is dropped after a check that it
    equals the input embedding.

    Args:
      directory: with the files.
      bert_name: their name, with or without prefix -> BERT's.

    Returns:
      The tensors, {name: what it is called in the file}, and {name: numpy's name of its type in the file}.

    Raises:
      UserError: no such file, a damaged one, a type other than float, untied embeddings, pytorch_model.bin without
        PyTorch.
    """
    tensors: dict[str, np.ndarray] = {}
    called: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    for file in _files(directory):
        for theirs, kind, x in _read(file):
            name = bert_name(_modern(theirs))
            if name in _BUFFERS:
                continue
            if kind not in _DTYPES:
                fix = 'save it in float32: quantised weights cannot start a run'
                raise UserError(f'{file}: {theirs}', f'type {kind}', 'one of ' + ', '.join(_DTYPES), fix)
            if name in tensors:  # some classes keep an encoder's pooler beside the layer that they use in its place
                if 'pooler' in theirs:
                    name = theirs
                else:
                    tensors[called[name]], dtypes[called[name]] = tensors[name], dtypes[name]
            tensors[name], called[name], dtypes[name] = x, theirs, jnp.dtype(_DTYPES[kind]).name
    for name, source in _TIED:
        if name not in tensors:
            continue
        tied = tensors.pop(name)
        dtypes.setdefault(source, dtypes[name])
        if not np.array_equal(tensors.setdefault(source, tied), tied):
            fix = 'give a BERT whose embeddings are tied'
            raise UserError(f'{directory}: {called[name]}', 'other values', f'those of {called[source]}', fix)
        called.setdefault(source, called[name])
    return tensors, called, dtypes


def _files(directory: epath.Path) -> list[epath.Path]:
    """The files with the tensors; safetensors where there are both."""
    for name in (MODEL, _TORCH):
        if (directory / name).exists():
            return [directory / name]
        if (directory / f'{name}.index.json').exists():
            return _shards(directory, f'{name}.index.json')
    found = sorted(file.name for file in directory.iterdir()) if directory.exists() else []
    fix = 'load it in transformers and save it again with save_pretrained (it writes safetensors)'
    raise UserError(str(directory), ', '.join(found[:6]) or 'nothing', f'{MODEL} or {_TORCH}', fix)


def _shards(directory: epath.Path, index: str) -> list[epath.Path]:
    table = read_json_object(directory / index, _AGAIN).get('weight_map')
    names = list(table.values()) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and name == os.path.basename(name) != '' for name in names):
        expected = 'a weight_map, with the file of each tensor'
        raise UserError(str(directory / index), 'something else', expected, _AGAIN)
    shards = sorted(set(names))
    for shard in shards:
        if not (directory / shard).exists():
            raise UserError(str(directory / shard), 'nothing', f'a shard that {index} names', _AGAIN)
    return [directory / shard for shard in shards]


Tensor = tuple[str, str, np.ndarray]  # its name, its type as safetensors calls it, its values as float32


def _read(file: epath.Path) -> Iterator[Tensor]:
    return _read_torch(file) if file.suffix == '.bin' else _read_safetensors(file)


def _read_safetensors(file: epath.Path) -> Iterator[Tensor]:
    try:
        found = safetensors.deserialize(read_bytes(file, 'a whole safetensors file', _AGAIN))
    except safetensors.SafetensorError as error:
        raise UserError(str(file), f'no safetensors ({error})', 'a whole safetensors file', 'copy it again') from None
    found.reverse()
    while found:  # each is let go once it is given
        name, view = found.pop()
        x = np.zeros(0, np.float32)
        if view['dtype'] in _DTYPES:
            x = np.frombuffer(view['data'], _DTYPES[view['dtype']], math.prod(view['shape'])).reshape(view['shape'])
        yield name, view['dtype'], x.astype(np.float32, copy=False)


def _read_torch(file: epath.Path) -> Iterator[Tensor]:
    """A state dict that torch.save wrote, read without running the pickle in it."""
    try:
        import torch  # not a dependency: most directories have safetensors
    except ImportError:
        fix = 'pip install torch, or where it is, load the model in transformers and save it again (as safetensors)'
        raise UserError(str(file), 'a file that only PyTorch reads safely', 'PyTorch to be installed', fix) from None
    kinds = {torch.float64: 'F64', torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16'}
    expected = 'a state dict as torch.save writes it, of dense tensors alone'
    fix = 'copy it again, or load the model in its own program and save it as safetensors'
    data = io.BytesIO(read_bytes(file, expected, _AGAIN))
    try:
        damaged = _damaged_entry(data)
        data.seek(0)
        with warnings.catch_warnings(action='ignore'):  # of pickles of newer protocols
            found = {} if damaged else torch.load(data, map_location='cpu', weights_only=True)
    except (*_UNREADABLE, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError):
        found = 'what PyTorch does not load with weights_only=True: damaged, or a pickle of more than tensors'
        raise UserError(str(file), found, expected, fix) from None
    if damaged:
        raise UserError(f'{file}: {damaged}', 'bytes with another CRC-32', 'those that torch.save wrote', _AGAIN)
    odd = None if isinstance(found, dict) else type(found).__name__
    dense = lambda x: isinstance(x, torch.Tensor) and not (x.layout != torch.strided or x.is_quantized or x.is_meta)  # noqa: E731
    odd = odd or next((f'{name!r}' for name, x in found.items() if not dense(x)), None)
    if odd:
        raise UserError(str(file), odd, expected, fix)
    for name, x in found.items():
        kind = kinds.get(x.dtype, str(x.dtype).removeprefix('torch.'))
        yield str(name), kind, x.detach().float().numpy()


# What zipfile raises on an archive that it cannot read, RuntimeError among them, as PyTorch does.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, RuntimeError)


def _damaged_entry(data: io.BytesIO) -> str | None:
    """The first entry of an archive with another CRC-32 than the archive says, read in pieces; PyTorch does not check.

    None where all are whole, and where there is nothing to compare with: in the format before PyTorch 1.6, which is no
    archive, and after `torch.serialization.set_crc32_options(False)`, which leaves every CRC-32 at 0.
    """
    if not zipfile.is_zipfile(data):
        return None
    with zipfile.ZipFile(data) as archive:
        return archive.testzip() if any(entry.CRC for entry in archive.infolist()) else None


def _modern(name: str) -> str:
    name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', name)
    return re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
