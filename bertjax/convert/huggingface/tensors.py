"""Reads the tensors of a Hugging Face directory and renames them as in the BERT of current transformers."""

import io
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
import safetensors
from etils import epath

from bertjax.convert.source import StoredTensor
from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes, read_json_object

MODEL = 'model.safetensors'
_TORCH = 'pytorch_model.bin'
# {dtype in safetensors' notation: its name in NumPy and PyTorch}, for the dtypes that can be read.
_DTYPES = {'F64': 'float64', 'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16'}
_AGAIN = 'copy the directory again'
# Constant buffers (a range and zeros) that older versions of transformers saved with the parameters.
_BUFFERS = ('bert.embeddings.position_ids', 'bert.embeddings.token_type_ids')
# Pairs (tensor, the tensor to which it is tied). Some programs save both tensors, which are equal in a BERT.
_TIED = (
    ('cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
    ('cls.predictions.decoder.bias', 'cls.predictions.bias'),
)


def read_tensors(
    directory: epath.Path,
    to_bert_names: Callable[[str], tuple[str, ...]] = lambda name: (name,),
    *,
    tied: bool = True,
) -> dict[str, StoredTensor]:
    """Reads all tensors except constant buffers, and returns them by their names in BERT.

    The files are model.safetensors or pytorch_model.bin, possibly in shards. LayerNorm's `gamma` and `beta` become
    `weight` and `bias`. Two tied tensors must be equal, and become one tensor.

    Args:
      directory: The directory of the files.
      to_bert_names: A function that converts a name in the file to a tuple of names in BERT. If it returns several
        names, the tensor is split into equal parts along its first axis.
      tied: Whether the output embedding is tied to the input embedding. If False, the two are separate tensors.

    Raises:
      UserError: A file is missing or damaged, a dtype is not supported, two tied tensors differ, or PyTorch is not
        installed for pytorch_model.bin.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _files(directory):
        for theirs, dtype, x in (_read_torch if file.suffix == '.bin' else _read_safetensors)(file):
            modern = theirs.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta', 'LayerNorm.bias')
            parts = to_bert_names(modern)
            if parts[0] in _BUFFERS:
                continue
            if dtype not in _DTYPES.values():
                fix = 'save it in float32: quantized weights cannot start a run'
                raise UserError(f'{file}: {theirs}', f'type {dtype}', 'one of ' + ', '.join(_DTYPES.values()), fix)
            if x.ndim == 0 or len(x) % len(parts):
                parts = (theirs,)  # Later, the tensor is reported as unused, or its shape as wrong.
            for name, part in zip(parts, np.split(x, len(parts)) if len(parts) > 1 else [x], strict=True):
                if name in tensors:  # Some classes save an unused pooler and the layer that replaces it.
                    if 'pooler' in theirs:
                        name = theirs
                    else:
                        tensors[tensors[name].name] = tensors[name]
                tensors[name] = StoredTensor(theirs, dtype, part)
    for name, source in _TIED:
        if name not in tensors or (not tied and name.endswith('.weight')):
            continue
        copy = tensors.pop(name)
        original = tensors.setdefault(source, copy)
        if not np.array_equal(original.values, copy.values, equal_nan=True):
            where, expected = f'{directory}: {copy.name}', f'the values of {original.name}'
            raise UserError(where, 'different values', expected, 'give a BERT in which the two are tied')
    return tensors


def _files(directory: epath.Path) -> list[epath.Path]:
    """Returns the files with the tensors. safetensors files are preferred."""
    for name in (MODEL, _TORCH):
        if (directory / name).exists():
            return [directory / name]
        if (directory / f'{name}.index.json').exists():
            return _shards(directory, f'{name}.index.json')
    names = sorted(file.name for file in directory.iterdir()) if directory.exists() else []
    fix = 'load it in transformers and save it again with save_pretrained (it writes safetensors)'
    raise UserError(str(directory), ', '.join(names[:6]) or 'nothing', f'{MODEL} or {_TORCH}', fix)


def _shards(directory: epath.Path, index: str) -> list[epath.Path]:
    table = read_json_object(directory / index, _AGAIN).get('weight_map')
    names = list(table.values()) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and name == os.path.basename(name) != '' for name in names):
        raise UserError(str(directory / index), 'no valid weight_map', 'the file of each tensor', _AGAIN)
    shards = [directory / name for name in sorted(set(names))]
    for shard in shards:
        if not shard.exists():
            raise UserError(str(shard), 'nothing', f'a shard that {index} names', _AGAIN)
    return shards


def _read_safetensors(file: epath.Path) -> Iterator[StoredTensor]:
    data = read_bytes(file, 'a complete safetensors file', _AGAIN)
    if data.startswith(b'version https://git-lfs'):
        raise UserError(str(file), 'a pointer of Git LFS', 'the tensors', 'run `git lfs pull` in the folder')
    try:
        views = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        found = f'invalid safetensors ({error})'
        raise UserError(str(file), found, 'a complete safetensors file', 'copy it again') from None
    views.reverse()
    while views:  # Each view leaves the list, so that its memory can be freed.
        name, view = views.pop()
        kind, x = _DTYPES.get(view['dtype'], view['dtype']), np.zeros(0)
        if view['dtype'] in _DTYPES:
            x = np.frombuffer(view['data'], jnp.dtype(kind), math.prod(view['shape'])).reshape(view['shape'])
        yield StoredTensor(name, kind, x.astype(np.float32, copy=False))


def _read_torch(file: epath.Path) -> Iterator[StoredTensor]:
    """Reads a state dict of torch.save without executing code from its pickle."""
    try:
        import torch  # PyTorch is not a dependency, because most directories have safetensors.
    except ImportError:
        fix = 'pip install torch, or save the model again with transformers on another machine (as safetensors)'
        raise UserError(str(file), 'a file that only PyTorch can read safely', 'an installed PyTorch', fix) from None
    expected = 'a state dict of torch.save with dense tensors only'
    fix = 'copy it again, or load the model in its own program and save it as safetensors'
    data = io.BytesIO(read_bytes(file, expected, _AGAIN))
    try:
        damaged = _damaged_entry(data)
        data.seek(0)
        with warnings.catch_warnings(action='ignore'):  # Warnings about newer pickle protocols.
            state = {} if damaged else torch.load(data, map_location='cpu', weights_only=True)
    except Exception:  # zipfile and pickle raise many types
        found = 'a file that PyTorch does not load with weights_only=True: it is damaged or has more than tensors'
        raise UserError(str(file), found, expected, fix) from None
    if damaged:
        found = 'bytes that do not match their CRC-32'
        raise UserError(f'{file}: {damaged}', found, 'the bytes that torch.save wrote', _AGAIN)
    if not isinstance(state, dict):
        raise UserError(str(file), type(state).__name__, expected, fix)
    for name, x in state.items():
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_quantized or x.is_meta:
            raise UserError(str(file), repr(name), expected, fix)
        yield StoredTensor(str(name), str(x.dtype).removeprefix('torch.'), x.detach().float().numpy())


def _damaged_entry(data: io.BytesIO) -> str | None:
    """Returns the name of the first entry whose CRC-32 is wrong, or None. PyTorch does not check the CRC-32.

    The result is also None without checksums: files from before PyTorch 1.6 are not archives, and
    `torch.serialization.set_crc32_options(False)` sets every CRC-32 to 0.
    """
    if not zipfile.is_zipfile(data):
        return None
    with zipfile.ZipFile(data) as archive:
        return archive.testzip() if any(entry.CRC for entry in archive.infolist()) else None
