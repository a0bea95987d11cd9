"""Writes a loaded model in another format, for `bert.save` and run=convert."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.config.ranges import format_value
from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.config import label_names
from bertjax.convert.huggingface.families import BERT, find_family
from bertjax.convert.huggingface.read import select_module_files
from bertjax.errors import UserError
from bertjax.files import disk
from bertjax.files.paths import is_remote
from bertjax.finetune.task_data import TASK_FILE
from bertjax.loading.load_model import LoadedModel
from bertjax.tasks.embedding.head import exported_module
from bertjax.tasks.exported import with_seq_len
from bertjax.workdir.exports import FORMATS, check_formats, write_export


def save_model(model: LoadedModel, path: str | os.PathLike, format: str) -> None:
    """Writes a model atomically, in one of FORMATS. The path is a local directory that is empty or does not exist.

    Raises a UserError if the path cannot be used, or if the format is unknown or cannot represent the model.
    """
    if format not in FORMATS:
        raise UserError('format', format_value(format), 'one of ' + ', '.join(FORMATS), "for example format='hf'")
    directory = _new_directory(path)
    content = model_to_export(model, [format], 'format')
    try:
        write_export(content, directory, format)
    except Exception as error:
        user_error = disk.explain_os_error(error, str(directory))
        if user_error is None:
            raise
        raise user_error from error


def model_to_export(model: LoadedModel, formats: Collection[str], where: str) -> ExportContent:
    """Makes the export content of a loaded model.

    Parts that were initialized at random, such as an untrained head, are omitted. The other parts keep the dtype of the
    model's files if the format supports it, else they become float32, with the same values. Raises a UserError if
    one of the formats cannot represent the model; its message names `where`, the key or argument of the formats.
    """
    task, origin = model.task, model.origin
    if task is not None:  # `bertjax.load` may have set another length
        task = with_seq_len(task, json.loads(origin.task_json)['seq_len'])
    head = None if task is None else task.head
    for format in formats:
        try:
            module = None if task is None else model.module
            check_formats([format], model.config, tokenizer=model.tokenizer, module=module, head=head)
        except UserError as error:
            raise _format_error(error, format, where) from None
    excluded = {name.partition('/')[0] for name in model.missing}
    if find_family(origin.values.get('model_type', BERT.name)) is not BERT:
        excluded.add('nsp')  # transformers has no RoBERTa or DistilBERT with a head for pairs.
    dtype = 'bfloat16' if origin.dtype == 'bfloat16' else 'float32'  # BertConfig.param_dtype cannot be float16.
    params = {part: tree for part, tree in model.params.items() if part not in excluded}
    config = dataclasses.replace(model.config, param_dtype=dtype)
    files = {} if task is None else task.model_files(config)
    modules, embeddings = model.sentence_modules, exported_module(config, model.sentence_modules)
    extra_files = {TASK_FILE: origin.task_json.encode()} if origin.task_json else {}
    max_length = task.truncated_length if task else 0
    if task is None and modules is not None:
        max_length = modules.max_length
        lost = [format for format in formats if format in ('stablehlo', 'onnx') and embeddings is None]
        # Modules that use layers before the last need `output_hidden_states` in Hugging Face's config.json.
        without_layers = [format for format in formats if format in ('orbax', 'google') and modules.layers != (-1,)]
        if not without_layers:
            extra_files |= select_module_files(origin.files)
        lost += without_layers
        if lost:
            print(f'the export to {", ".join(lost)} lacks the modules of sentence-transformers ({modules.describe()})')
    return ExportContent(
        module=model.module.clone(config=config),
        params=jax.tree.map(lambda x: x if x.dtype == dtype else np.asarray(x).astype(dtype), params),
        tokenizer=model.tokenizer,
        card={'title': 'BERT' if task is None else f'BERT for {task.name}', 'made': 'saved'},
        about={'base_model': origin.hub} if origin.hub else {},
        head=head,
        task={} if task is None else _labels(task.huggingface(), origin.values),
        extra_files=extra_files,
        dtype=origin.dtype,
        values=origin.values,
        files={**files, **origin.files},
        max_length=max_length,
        embeddings=embeddings,
    )


def _new_directory(path: Any) -> pathlib.Path:
    if not isinstance(path, str | os.PathLike) or os.fspath(path) == '' or '\0' in os.fspath(path):
        raise UserError('path', format_value(path), 'the path of a new folder', "for example bert.save('out/model')")
    if is_remote(path):
        fix = 'save the model on this machine and copy it, or use run=convert with that --workdir'
        raise UserError('path', os.fspath(path), 'a folder on this machine', fix)
    directory = pathlib.Path(os.path.expanduser(path))  # Path.expanduser would raise for an unknown `~user`.
    if os.path.lexists(directory) and not (directory.is_dir() and not any(directory.iterdir())):
        found = 'a folder with files' if directory.is_dir() else 'a file'
        fix = 'give another path, or remove the existing files'
        raise UserError(str(directory), found, 'nothing, or an empty folder', fix)
    return directory


def _labels(fields: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the task's fields for config.json.

    The label names in the model's original config.json are used if their number is right. For a regression, the name
    exists only in that config.json.
    """
    names = values.get('id2label')
    if not isinstance(names, dict) or len(names) != len(fields.get('id2label', ())):
        return dict(fields)
    ours, theirs = label_names(fields.get('id2label')), label_names(names)
    if ours != theirs and sorted(ours) == sorted(theirs):  # `load_task_model` has reordered the outputs of the head
        return dict(fields)
    return {**fields, **{key: values[key] for key in ('id2label', 'label2id') if key in values}}


def _format_error(error: UserError, format: str, where: str) -> UserError:
    """Rewords an error of `check_formats`, which mentions keys of a training run, for an existing model."""
    key = error.where.removeprefix('config.')
    found, expected = f'{format} for a model with {key} {error.found.partition(" with ")[0]}', error.expected
    if key == 'export_formats':
        found = error.found
    elif key == 'export':
        found, expected = f'{format}, but {expected.partition(", because ")[2]}', 'a format that supports the head'
    fix = 'choose another format, such as orbax' if 'config.' in error.fix else error.fix
    return UserError(where, found, expected, fix)
