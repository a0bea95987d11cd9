"""Hugging Face directories: export of a trained model, import as the start of a run."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
import safetensors.numpy
from etils import epath
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.convert import huggingface_config, names
from bertjax.convert.card import model_card
from bertjax.convert.huggingface_config import check_exportable
from bertjax.convert.tensors import read_tensors
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params, stack_layers, unstack_layers

__all__ = ['Imported', 'check_exportable', 'export_huggingface', 'load_huggingface']

CONFIG, MODEL, CARD = 'config.json', 'model.safetensors', 'README.md'
HEADS = ('pooler/', 'mlm/', 'nsp/')  # what a directory may lack


class SavedTokenizer(Protocol):
    """What the export needs of a tokenizer (text/tokenizer.py)."""

    vocab_size: int
    pad_id: int

    def save(self, directory: str) -> None:
        """Writes the files that transformers loads."""


@dataclasses.dataclass(frozen=True)
class Imported:
    """A model read from a Hugging Face directory.

    Attributes:
      params: complete tree of BertForPreTraining(config), numpy arrays in float32, no boxes.
      config: of the model.
      missing: our paths that the directory lacks, freshly drawn.
      unused: names of their tensors that the model has no place for.
    """

    params: dict
    config: BertConfig
    missing: list[str]
    unused: list[str]


def _flat(tree: dict) -> dict[str, Any]:
    return flatten_dict(tree, sep='/')


def _example_inputs() -> tuple[np.ndarray, ...]:
    return tuple(np.zeros((1, 1), np.int32) for _ in range(4))


@functools.cache
def _shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters with stacked layers, by path; nothing is computed."""
    model = BertForPreTraining(dataclasses.replace(config, scan_layers=True))
    abstract = jax.eval_shape(lambda: nn.unbox(init_params(model, jax.random.key(0), *_example_inputs())))
    return {path: leaf.shape for path, leaf in _flat(abstract).items()}


@contextlib.contextmanager
def _whole_directory(target: epath.Path) -> Iterator[str]:
    """A local directory to fill; when the body ends well it takes the place of `target`, else nothing has changed."""
    remote = '://' in os.fspath(target)
    if remote:
        with tempfile.TemporaryDirectory() as staging:
            yield staging
            target.mkdir(parents=True, exist_ok=True)
            # A store of objects cannot rename a directory: the file that makes it loadable goes last.
            for name in sorted(os.listdir(staging), key=lambda name: (name == CONFIG, name)):
                epath.Path(staging, name).copy(target / name, overwrite=True)
        return
    path = os.path.abspath(os.fspath(target))
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    fresh, old = os.path.join(parent, f'.{name}.new'), os.path.join(parent, f'.{name}.old')
    if os.path.isdir(old) and not os.path.isdir(path):
        os.rename(old, path)  # a process died between the two renames below
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    os.mkdir(fresh)
    try:
        yield fresh
        for entry in os.listdir(fresh):
            with open(os.path.join(fresh, entry), 'rb') as file:
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if os.path.isdir(path):
        os.rename(path, old)
    os.rename(fresh, path)
    shutil.rmtree(old, ignore_errors=True)


def export_huggingface(
    params: Mapping,
    config: BertConfig,
    tokenizer: SavedTokenizer,
    directory: epath.PathLike,
    *,
    card: Mapping[str, Any],
) -> None:
    """Writes a directory that transformers loads: config.json, model.safetensors, tokenizer files, README.md.

    The directory appears whole or not at all; an earlier export in its place goes only then. Equal parameters give
    equal bytes.

    Args:
      params: of BertForPreTraining(config), stacked or unrolled as the config says; boxes are fine.
      config: of the model.
      tokenizer: whose files go along.
      directory: local or remote.
      card: training facts for the model card; see `card.model_card`.

    Raises:
      UserError: a model that the format cannot hold, a tokenizer of another size, a directory that holds other things.
      ValueError: parameters that do not fit the config.
    """
    check_exportable(config)
    target = epath.Path(directory)
    if tokenizer.vocab_size != config.vocab_size:
        expected = f'{config.vocab_size}, as config.model.vocab_size'
        raise UserError('tokenizer', f'{tokenizer.vocab_size} pieces', expected, 'export with the tokenizer of the run')
    if target.exists() and not (target / CONFIG).exists() and any(target.iterdir()):
        mend = 'choose another directory: this one would be replaced'
        raise UserError(str(target), 'a directory with other files', 'an earlier export or nothing', mend)
    tree = nn.unbox(dict(params))
    tree = jax.tree.map(lambda x: np.asarray(x, np.float32), jax.device_get(tree))
    flat = _flat(tree if config.scan_layers else stack_layers(tree))
    shapes = {path: x.shape for path, x in flat.items()}
    if shapes != _shapes(config):
        difference = sorted(shapes.items() ^ _shapes(config).items())
        raise ValueError(f'parameters do not fit the config: {difference[:4]}')
    tensors = names.to_huggingface(flat, config.num_layers, config.vocab_size)
    described = huggingface_config.to_json(config, tokenizer.pad_id)
    with _whole_directory(target) as staging:
        tokenizer.save(staging)
        path = epath.Path(staging)
        (path / MODEL).write_bytes(safetensors.numpy.save(tensors, metadata={'format': 'pt'}))
        (path / CARD).write_text(model_card(config, described['architectures'][0], card))
        (path / CONFIG).write_text(json.dumps(described, indent=2, sort_keys=True) + '\n')


def load_huggingface(directory: epath.PathLike, *, scan_layers: bool = True, seed: int = 0, **changes: Any) -> Imported:
    """Reads a Hugging Face BERT as the start of a run: ours or other people's, with or without heads.

    Args:
      directory: with config.json and model.safetensors, whole or in shards.
      scan_layers: form of the parameter tree.
      seed: draws what the directory lacks.
      **changes: other fields of the BertConfig than the directory's (dropout, dtype, nsp ...). Without `nsp` the
        model has a pair head where the directory has a pooler.

    Raises:
      UserError: a directory that is no BERT's, a damaged file, an encoder that is not whole, tensors of other shapes.
    """
    path = epath.Path(directory)
    where = str(path / CONFIG)
    try:
        values = json.loads((path / CONFIG).read_text())
    except FileNotFoundError:
        mend = "give a directory that transformers' save_pretrained or our export wrote"
        raise UserError(str(path), f'no {CONFIG}', 'a Hugging Face directory', mend) from None
    except ValueError as error:
        raise UserError(where, f'no JSON ({error})', 'a JSON object', 'copy the directory again') from None
    if not isinstance(values, dict):
        raise UserError(where, f'a JSON {type(values).__name__}', 'a JSON object', 'copy the directory again')
    tensors = read_tensors(path)
    fields = huggingface_config.from_json(values, where)
    fields['nsp'] = 'bert.pooler.dense.weight' in tensors
    try:
        config = BertConfig(**fields)
    except UserError as error:
        mend = 'copy the directory again: its config.json was changed'
        raise UserError(where, f'{error.where.split(".")[-1]} {error.found}', error.expected, mend) from None
    config = dataclasses.replace(config, **changes, scan_layers=scan_layers)
    shapes = _shapes(config)
    used = _check_shapes(tensors, shapes, config, path)
    flat = names.from_huggingface(tensors, shapes, config.num_layers)
    missing = sorted(set(shapes) - set(flat))
    absent = [name for name in missing if not name.startswith(HEADS)]
    if absent:
        expected = f'all tensors of an encoder of {config.num_layers} layers'
        raise UserError(str(path), f'no {", ".join(absent[:3])}', expected, 'give a directory of a whole BERT encoder')
    flat |= _draw(missing, config, seed)
    tree = unflatten_dict({tuple(name.split('/')): flat[name] for name in shapes})
    params = tree if scan_layers else unstack_layers(tree)
    return Imported(params, config, missing, sorted(set(tensors) - used))


def _check_shapes(
    tensors: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], config: BertConfig, path: epath.Path
) -> set[str]:
    """Names of their tensors that the model takes, all of the right shape."""
    used = set()
    for entry in names.entries(config.num_layers, shapes):
        if entry.theirs not in tensors:
            continue
        ours = shapes[entry.ours] if entry.layer is None else shapes[entry.ours][1:]
        expected, found = entry.their_shape(ours, config.vocab_size), tensors[entry.theirs].shape
        if found != expected:
            mend = f'{CONFIG} and the tensors do not belong together: copy both again from one source'
            raise UserError(f'{path}: {entry.theirs}', f'shape {found}', f'{expected} by {CONFIG}', mend)
        used.add(entry.theirs)
    return used


def _draw(paths: list[str], config: BertConfig, seed: int) -> dict[str, np.ndarray]:
    """Initial values of these parameters, float32; only they are computed."""
    if not paths:
        return {}
    model = BertForPreTraining(dataclasses.replace(config, scan_layers=True, param_dtype='float32'))

    @jax.jit
    def draw(key: jax.Array) -> dict[str, jax.Array]:
        flat = _flat(nn.unbox(init_params(model, key, *_example_inputs())))
        return {path: flat[path] for path in paths}

    return {path: np.asarray(x) for path, x in draw(jax.random.key(seed)).items()}
