"""Exports a model as an Orbax directory for JAX programs, and reads such a directory."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.convert import names
from bertjax.convert.content import ExportContent
from bertjax.convert.source import CheckpointSource, StoredTensor
from bertjax.convert.trees import params_digest
from bertjax.errors import UserError, first_line
from bertjax.files.disk import annotate_write_errors
from bertjax.files.paths import without_wildcards
from bertjax.files.small_files import read_json_object
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.model.stacking import STACKED

MODEL, PARAMS = 'model.json', 'params'
_FILE_BYTES = 32 * 2**20  # Orbax starts a new file after this many compressed bytes.
_CHECKSUM = 'checksum.json'  # The file with the checksum of all values. Orbax does not detect flipped bits.
_AGAIN = 'copy the directory again, or export the model again'


def export_orbax(content: ExportContent, directory: pathlib.Path) -> None:
    """Writes DIR/params (Orbax), DIR/model.json (the config and the head), DIR/checksum.json and the tokenizer.

    The local directory DIR appears atomically and replaces an earlier directory. Other programs read the parameters
    with `StandardCheckpointer().restore(DIR / 'params')`.
    """
    params = jax.device_get(content.params)  # A checkpoint of host arrays loads on any number of devices.
    facts = dataclasses.asdict(content.config) | ({'head': _head_facts(content)} if content.head else {})
    with content.stage(directory, for_others=False) as path:
        size = sum(x.nbytes for x in jax.tree.leaves(params))
        with without_wildcards(pathlib.Path(path)) as plain, annotate_write_errors(path, size):
            _save(params, plain / PARAMS)
        (path / _CHECKSUM).write_text(json.dumps({'sha256': params_digest(params)}) + '\n')
        (path / MODEL).write_text(json.dumps(facts, indent=2) + '\n')


def _head_facts(content: ExportContent) -> dict[str, Any]:
    """Returns a task model's class, the arguments of the class except `config` and `packing`, the head and the task."""
    excluded = ('config', 'packing', 'parent', 'name')
    arguments = [field.name for field in dataclasses.fields(content.module) if field.name not in excluded]
    return {
        'class': type(content.module).__name__,
        **{name: getattr(content.module, name) for name in arguments},
        'architecture': content.head.name,
        'projection': content.projection,
        'task': dict(content.task),
    }


def _save(params: Any, directory: pathlib.Path) -> None:
    """Writes files that `StandardCheckpointer` can restore.

    `StandardCheckpointer.save` would copy the host arrays and buffer all compressed data: memory for two more models.
    """
    import orbax.checkpoint as ocp  # Imported here, because importing Orbax takes as long as importing JAX.

    arrays = ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, arrays))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry)) as checkpointer:
        checkpointer.save(directory, args=ocp.args.PyTreeSave(params, ocdbt_target_data_file_size=_FILE_BYTES))


def recognizes(directory: epath.Path) -> bool:
    """Returns whether a directory has model.json and params/."""
    return (directory / MODEL).exists() and (directory / PARAMS).is_dir()


def read(directory: epath.Path) -> CheckpointSource:
    """Reads the description of a model as a `CheckpointSource`; see convert/load.py."""
    config_path = directory / MODEL
    facts = read_json_object(config_path, _AGAIN)
    head = facts.get('head', {})
    if not isinstance(head, dict) or not isinstance(head.get('task', {}), dict):
        raise UserError(str(config_path), 'a head or a task that is not an object', 'the metadata of an export', _AGAIN)
    architecture = head.get('architecture', 'BertForPreTraining')
    values = {**head.get('task', {}), 'architectures': [architecture]}
    if 'vocab_size' not in facts:
        raise UserError(str(config_path), 'no vocab_size', 'the fields of a BertConfig', _AGAIN)
    field_names = fields_of(FieldKind.ARCHITECTURE, FieldKind.TRAINING).keys() - {'param_dtype'}
    fields = {name: facts[name] for name in facts if name in field_names}
    tensors = functools.partial(_tensors, directory, fields, head.get('projection', ''))
    return CheckpointSource(str(directory), str(config_path), values, fields, tensors, architecture)


def _tensors(directory: epath.Path, fields: Mapping[str, Any], projection: str) -> dict[str, StoredTensor]:
    folder = pathlib.Path(directory)
    try:
        import orbax.checkpoint as ocp  # see `_save`

        with without_wildcards(folder) as plain, ocp.StandardCheckpointer() as checkpointer:
            params = jax.tree.map(np.asarray, checkpointer.restore(plain / PARAMS))
    except Exception as error:  # Each layer of Orbax raises its own exceptions.
        found = f'files that Orbax cannot read ({first_line(error)})'
        raise UserError(str(folder / PARAMS), found, 'a complete export', _AGAIN) from None
    if read_json_object(directory / _CHECKSUM, _AGAIN).get('sha256') != params_digest(params):
        raise UserError(str(folder / PARAMS), 'values that do not match their checksum', 'a complete export', _AGAIN)
    config = BertConfig(**fields, scan_layers=STACKED in params['encoder'])
    dtype = jax.tree.leaves(params)[0].dtype.name  # the same for all arrays, see `BertConfig.param_dtype`
    return {name: StoredTensor(name, dtype, x) for name, x in names.to_huggingface(params, config, projection).items()}
