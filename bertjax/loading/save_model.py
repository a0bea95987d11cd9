"""A loaded model written in another format: `bert.save` and run=convert."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.config.ranges import format_value
from bertjax.convert.hub import hub_name
from bertjax.convert.huggingface.families import BERT, find_family
from bertjax.errors import UserError
from bertjax.files import disk
from bertjax.files.paths import is_remote
from bertjax.finetune.task_data import TASK_FILE
from bertjax.loading.load_model import LoadedModel
from bertjax.workdir.exports import FORMATS, ExportContent, check_formats, write_export
from bertjax.workdir.resolve_path import PathKind, classify_path


def save_model(model: LoadedModel, path: str | os.PathLike, format: str) -> None:
    """Writes a model to a new local directory, whole or not at all.

    Args:
      model: as loaded, perhaps with other parameters.
      path: of the directory, which must not exist or be empty.
      format: one of FORMATS.

    Raises:
      UserError: the path is in use, not local or cannot be written; an unknown format, or one that cannot hold the
        model.
    """
    if format not in FORMATS:
        raise UserError('format', format_value(format), 'one of ' + ', '.join(FORMATS), "for example format='hf'")
    directory = _new_directory(path)
    finished = model_to_export(model, [format], 'format')
    try:
        write_export(finished, directory, format)
    except Exception as error:
        refused = disk.refused(error, str(directory))
        if refused is None:
            raise
        raise refused from error


def model_to_export(model: LoadedModel, formats: Collection[str], where: str) -> ExportContent:
    """A loaded model as one to export.

    Parameters that its files lacked and that were drawn at random are left out; the others keep the type in which the
    files store them, where the format has it (otherwise float32, which holds the same values).

    Args:
      model: as loaded, perhaps with other parameters.
      formats: to write, some of FORMATS.
      where: the key or argument that names the formats, for messages.

    Raises:
      UserError: one of the formats cannot hold the model.
    """
    task, origin = model.task, model.origin
    head = None if task is None else task.head
    for format in formats:
        try:
            module = None if task is None else model.module
            check_formats([format], model.config, vocabulary=model.tokenizer.family, model=module, head=head)
        except UserError as error:
            raise _format_error(error, format, where) from None
    drawn = {name.partition('/')[0] for name in model.missing}
    if find_family(origin.values.get('model_type', BERT.name)) is not BERT:
        drawn.add('nsp')  # no class of RoBERTa or DistilBERT has a head on pairs
    stored = 'bfloat16' if origin.dtype == 'bfloat16' else 'float32'  # BertConfig.param_dtype has no float16
    params = {part: tree for part, tree in model.params.items() if part not in drawn}
    config = dataclasses.replace(model.config, param_dtype=stored)
    hub = hub_name(model.where) if classify_path(model.where) is PathKind.HUB else None
    return ExportContent(
        model=model.module.clone(config=config),
        params=jax.tree.map(lambda x: x if x.dtype == stored else np.asarray(x).astype(stored), params),
        tokenizer=model.tokenizer,
        card={'title': 'BERT' if task is None else f'BERT for {task.name}', 'made': 'saved'},
        about={'base_model': hub[0]} if hub else {},
        head=head,
        task={} if task is None else _labels(task.huggingface(), origin.values),
        extra_files={TASK_FILE: origin.task_json} if origin.task_json else {},
        dtype=origin.dtype,
        values=origin.values,
        files=origin.files,
    )


def _new_directory(path: Any) -> pathlib.Path:
    if not isinstance(path, str | os.PathLike) or os.fspath(path) == '' or '\0' in os.fspath(path):
        raise UserError('path', format_value(path), 'the path of a new folder', "for example bert.save('out/model')")
    if is_remote(path):
        fix = 'save it on this machine and copy it, or give run=convert that --workdir'
        raise UserError('path', os.fspath(path), 'a folder on this machine', fix)
    directory = pathlib.Path(os.path.expanduser(path))  # as it is where there is no such user
    if os.path.lexists(directory) and not (directory.is_dir() and not any(directory.iterdir())):
        found = 'a folder with files' if directory.is_dir() else 'a file'
        raise UserError(
            str(directory), found, 'nothing, or an empty folder', 'give another path, or remove what is there'
        )
    return directory


def _labels(fields: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a task for config.json, with the names that the model's own config.json has for as many outputs: a task
    knows none of the output of a regression."""
    names = values.get('id2label')
    if not isinstance(names, dict) or len(names) != len(fields.get('id2label', ())):
        return dict(fields)
    return {**fields, **{key: values[key] for key in ('id2label', 'label2id') if key in values}}


def _format_error(error: UserError, format: str, where: str) -> UserError:
    """The same in terms of a model that exists: what checks a recipe speaks of its keys."""
    key = error.where.removeprefix('config.')
    found, expected = f'{format}, for a model with {key} {error.found.partition(" with ")[0]}', error.expected
    if key == 'export_formats':
        found = error.found
    elif key == 'export':
        found, expected = f'{format}, where {expected.partition(", as ")[2]}', 'a format that has its head'
    fix = 'choose another format, such as orbax' if 'config.' in error.fix else error.fix
    return UserError(where, found, expected, fix)
