"""Loads saved models as initial weights for pre-training or for a task's model.

A format is a module with two functions. `recognizes(directory)` returns whether a directory has the file names of the
format. `read(directory)` reads the description of a model as a `CheckpointSource`, and raises a UserError if the
description is damaged or not supported.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from bertjax.convert import names, orbax
from bertjax.convert.google import read as google
from bertjax.convert.google.names import MNLI_LABELS
from bertjax.convert.heads import Head
from bertjax.convert.huggingface import read as huggingface
from bertjax.convert.huggingface.config import label_names
from bertjax.convert.source import CheckpointSource
from bertjax.convert.trees import init_stacked, stacked_shapes
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.stacking import unstack_layers
from bertjax.parallel.distributed import fetch_to_all_hosts

FORMATS = (huggingface, google, orbax)  # the formats that can be read, in the order in which they are tried
_MAX_LISTED = 12  # The maximum number of names in a line.


@dataclasses.dataclass(frozen=True)
class ImportedModel:
    """A model read from a directory.

    Attributes:
      params: The complete parameter tree, float32 NumPy arrays without Linen's boxes.
      config: The config of the model.
      missing: The paths of the parameters that were not read from the directory. They are newly initialized.
      unused: The names of the directory's tensors that the model does not use, and other unused content
        (`CheckpointSource.unused_content`).
      used: The number of the directory's tensors that the model uses.
      kind: The class of transformers in the directory's config; '' if there is none.
      dtype: The dtype of the used tensors in the directory: 'float16', 'bfloat16' or 'float32'. Float64 and mixed
        dtypes count as 'float32'.
      head_note: A line about the directory's head if its outputs have no names or differ from the labels, else ''.
    """

    params: dict
    config: BertConfig
    missing: list[str]
    unused: list[str]
    used: int
    kind: str
    dtype: str = 'float32'
    head_note: str = ''

    def describe_missing(self, paths: Sequence[str]) -> str:
        """Returns the text for `UserError.found` in an error about missing parameters."""
        return '; '.join(filter(None, [f'no {", ".join(paths)}', self.head_note]))

    def describe(self, where: str, action: str = 'starting from') -> str:
        """Returns a line about the loaded and the new parameters. Unused content and `head_note` add lines."""
        source = f' of its {self.kind}' if self.kind else ''
        missing, unused = _format_names(self.missing), _format_names(self.unused)
        line = f'{action} {where}; {self.used} tensors{source} loaded; newly initialized: {missing}'
        return '\n'.join(filter(None, [line, f'not used: {unused}' if self.unused else '', self.head_note]))


def is_model(directory: epath.PathLike) -> bool:
    """Returns whether any format recognizes a directory."""
    return any(model_format.recognizes(epath.Path(directory)) for model_format in FORMATS)


def read_source(directory: epath.PathLike) -> CheckpointSource:
    """Reads a model with the first format that recognizes its directory.

    Raises a UserError if no format recognizes the directory, or if the description is damaged or not of a BERT.
    """
    path = epath.Path(directory)
    for model_format in FORMATS:
        if model_format.recognizes(path):
            return model_format.read(path)
    fix = "give a directory that transformers' save_pretrained, google-research/bert or an export of bertjax wrote"
    raise UserError(str(path), f'no {huggingface.CONFIG} or {google.CONFIG}', 'the directory of a model', fix)


def read_config(directory: epath.PathLike, **changes: Any) -> BertConfig:
    """Reads the BertConfig of a directory from its description, such as config.json, without reading its tensors.

    `changes` are BertConfig fields that replace the directory's fields (dropout, dtype, scan_layers ...). For the
    config.json of a BERT, which does not mention the pair head, `nsp` is True unless `changes` sets it. For the errors,
    see `read_source`.
    """
    return _config(read_source(directory), **changes)


def load_pretraining_model(
    directory: epath.PathLike, *, scan_layers: bool = True, seed: int = 0, **changes: Any
) -> ImportedModel:
    """Loads any BERT, in any of FORMATS, with or without heads, as the start of pre-training.

    Args:
      scan_layers: Whether the layers of the parameter tree are stacked.
      seed: The seed of the newly initialized parameters.
      **changes: BertConfig fields that replace the directory's fields (dropout, dtype, nsp ...). Without `nsp`,
        the model has a pair head if the directory has a pooler.

    Raises:
      UserError: The model is not a BERT, a file is damaged, the encoder is incomplete, or shapes differ.
    """
    source = read_source(directory)
    config = _config(source, scan_layers=scan_layers)
    nsp = 'bert.pooler.dense.weight' in source.tensors
    model = BertForPreTraining(dataclasses.replace(config, **{'nsp': nsp, **changes}))
    return _assemble(source, model, stacked_shapes(model), '', seed)


def load_task_model(
    directory: epath.PathLike,
    model: BertForTask,
    head: Head,
    *,
    id2label: Mapping[int, str] | None = None,
    seed: int = 0,
) -> ImportedModel:
    """Loads a BERT as the start of a task's model.

    The encoder is always read from the directory, and pooler and head only if their shapes fit. A head that is not a
    module of sentence-transformers is read only if the directory's model also has the same class. A module of
    sentence-transformers for another encoder width is an error. If both models name their outputs, the names must also
    be equal, but outputs in another order are reordered. Unnamed outputs are assumed to be in the order of `id2label`.
    `head_note` reports these cases.

    `model` has the config that `read_config` returned for this directory, and `id2label` has the names of its outputs.
    For `seed` and the errors, see `load_pretraining_model`.
    """
    source = read_source(directory)
    theirs, ours = label_names(source.values.get('id2label')), label_names(id2label)
    path = epath.Path(directory)
    if sorted(ours) == [*MNLI_LABELS] and google.recognizes(path) and not huggingface.recognizes(path):
        theirs = MNLI_LABELS
    same_class = head.name in (source.values.get('architectures') or ())
    reordered = sorted(theirs) == sorted(ours) and len({*ours}) == len(ours)
    same_names = not theirs or not ours or theirs == ours or reordered
    same_head = same_class and same_names
    # Parts whose shapes differ are not read: a head with another number of outputs, or a pooler on top of a BiLSTM.
    shapes = stacked_shapes(model)
    misfits: dict[str, int] = {}  # {part: the number of its outputs}
    for entry in names.entries(model.config, shapes, head.projection):
        part, tensor = entry.ours.split('/')[0], source.tensors.get(entry.theirs)
        if part == 'encoder' or tensor is None:
            continue
        their_shape = entry.their_shape(shapes[entry.ours], model.config.vocab_size)
        is_misfit = tensor.values.shape != their_shape
        if '/' in entry.theirs:  # a module of sentence-transformers may have other outputs, but must fit the encoder
            is_misfit &= tensor.values.shape[1:] == their_shape[1:]
        else:
            is_misfit |= part == 'head' and not same_head
        if is_misfit:
            misfits[part] = tensor.values.shape[0]
    readable = {name: shape for name, shape in shapes.items() if name.split('/')[0] not in misfits}
    imported = _assemble(source, model, readable, head.projection, seed)
    if same_head and id2label and misfits.get('head', len(id2label)) != len(id2label):
        note = f'its head has {misfits["head"]} outputs, not {len(id2label)}'
        return dataclasses.replace(imported, head_note=note)
    if not same_class or not ours or theirs == ours:
        return imported
    if not same_names:
        note = f'the outputs of its head are {_format_names(theirs)}, not {_format_names(ours)}'
        return dataclasses.replace(imported, head_note=note)
    if any(path.startswith('head/') for path in imported.missing):
        return imported
    if not theirs:
        note = f'the outputs of its head have no names, and are taken as {_format_names(ours)}'
        return dataclasses.replace(imported, head_note=note)
    order = [theirs.index(name) for name in ours]
    params = imported.params | {'head': jax.tree.map(lambda x: x[..., order], imported.params['head'])}
    note = f'the outputs of its head are reordered from {_format_names(theirs)}'
    return dataclasses.replace(imported, params=params, head_note=note)


def _config(source: CheckpointSource, **changes: Any) -> BertConfig:
    where = source.description_file
    try:
        config = BertConfig(**source.fields)
    except UserError as error:
        fix = f'copy the directory again: {os.path.basename(where)} was changed'
        key = error.where.rpartition('.')[2]
        raise UserError(where, f'{source.keys.get(key, key)} {error.found}', error.expected, fix) from None
    return dataclasses.replace(config, **changes)


def _assemble(
    source: CheckpointSource, model: nn.Module, readable: Mapping[str, tuple[int, ...]], head: str, seed: int
) -> ImportedModel:
    """Reads the paths in `readable` from the source if it has them, and initializes all other parameters."""
    config, shapes = model.config, stacked_shapes(model)
    flat, used = _read_params(source, readable, config, head)
    unused = sorted(tensor.name for tensor in source.tensors.values())
    missing = sorted(set(shapes) - set(flat))
    missing_encoder = [name for name in missing if name.startswith('encoder/')]
    if missing_encoder:
        expected = f'all tensors of an encoder of {config.num_layers} layers'
        fix = 'give a directory with a complete BERT encoder'
        raise UserError(source.where, f'no {", ".join(missing_encoder[:3])}', expected, fix)
    flat |= _init_params(missing, model, seed)
    tree = unflatten_dict({tuple(name.split('/')): flat[name] for name in shapes})
    params = tree if config.scan_layers else unstack_layers(tree)
    unused += [source.unused_content] if source.unused_content else []
    dtype = next((dtype for dtype in ('float16', 'bfloat16') if {*used.values()} == {dtype}), 'float32')
    return ImportedModel(params, config, missing, unused, len(used), source.kind, dtype)


def _format_names(names: Sequence[str]) -> str:
    rest = [f'and {len(names) - _MAX_LISTED} more'] if len(names) > _MAX_LISTED else []
    return ', '.join([*names[:_MAX_LISTED], *rest]) or 'nothing'


def _read_params(
    source: CheckpointSource, shapes: Mapping[str, tuple[int, ...]], config: BertConfig, head: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns our arrays by path, with stacked layers, and {name: dtype} of the tensors that were converted to them.

    The shapes and values are checked. Converted tensors are removed from the source, because two copies of a large
    model may not fit in memory. If a tensor of a path is missing, the result lacks the path.
    """
    described, used = os.path.basename(source.description_file), {}
    entries = list(names.entries(config, shapes, head))
    incomplete = {entry.ours for entry in entries if entry.theirs not in source.tensors}
    # If a model of one block does not use its attention norm, the norm has no entry, and its array is all ones.
    params = {path: np.ones(shapes[path], np.float32) for path in shapes.keys() - {entry.ours for entry in entries}}
    for entry in entries:
        tensor, path = source.tensors.pop(entry.theirs, None), entry.ours
        if tensor is None:
            continue
        x, where = tensor.values, f'{source.where}: {tensor.name}'
        expected = entry.their_shape(shapes[path], config.vocab_size)
        if x.shape != expected:
            fix = f'{described} and the tensors belong to different models: copy both again from one source'
            raise UserError(where, f'shape {x.shape}', f'{expected}, as in {described}', fix)
        finite = np.isfinite(x)
        if not finite.all():
            found = f'{finite.size - finite.sum():,} values that are nan or inf'
            fix = 'give another checkpoint: a run that starts from these values cannot learn'
            raise UserError(where, found, 'finite numbers', fix)
        used[tensor.name] = tensor.dtype  # several of our arrays may come from one of their tensors
        if entry.layer is None:
            params[path] = np.ascontiguousarray(entry.to_ours(x, shapes[path]))
        elif path not in incomplete:
            if path not in params:
                params[path] = np.ones(shapes[path], x.dtype)  # the unused norm of block 0 keeps ones
            params[path][entry.layer] = entry.to_ours(x, shapes[path])
    return params, used


def _init_params(paths: list[str], model: nn.Module, seed: int) -> dict[str, np.ndarray]:
    """Returns initial values, float32, of the parameters in `paths`, without computing other parameters."""
    if not paths:
        return {}
    model = model.clone(config=dataclasses.replace(model.config, param_dtype='float32'))

    @jax.jit
    def init(key: jax.Array) -> dict[str, jax.Array]:
        flat = init_stacked(model, key)
        return {path: flat[path] for path in paths}

    return {path: np.asarray(x) for path, x in fetch_to_all_hosts(init(jax.random.key(seed))).items()}
