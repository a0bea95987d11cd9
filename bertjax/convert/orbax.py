"""The parameters alone as an Orbax directory, for other JAX programs: `params/`, and the model's config beside it."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertjax.files.atomic import make_directory, recover_directory, replace_directory, write_atomic
from bertjax.files.disk import writing
from bertjax.files.paths import without_wildcards
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel


def head_facts(model: TaskModel) -> dict[str, Any]:
    """How to construct a task's model beside its config: the name of its class, and its arguments."""
    fields = [field.name for field in dataclasses.fields(model) if field.name not in ('config', 'parent', 'name')]
    return {'class': type(model).__name__, **{name: getattr(model, name) for name in fields}}


def export_orbax(
    params: Any, config: BertConfig, directory: pathlib.Path, *, head: Mapping[str, Any] | None = None
) -> None:
    """Writes DIR/params (Orbax, StandardSave) and DIR/model.json (the fields of BertConfig); replaces an earlier one.

    Read it with `StandardCheckpointer().restore(DIR / 'params')`.

    Args:
      params: of BertForPreTraining or of a task's model.
      config: of the model.
      directory: DIR, local.
      head: of a task's model: `head_facts` and names of the outputs, written to model.json as `head`.
    """
    params = jax.device_get(params)  # host arrays: they load on any number of devices
    make_directory(directory)
    recover_directory(directory / 'params')
    # Orbax removes the earlier one before it writes: so it writes beside it.
    for left in directory.glob('.params.new*'):
        shutil.rmtree(left)
    for left in directory.glob('.model.json.tmp-*'):
        left.unlink()
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    with without_wildcards(directory) as plain, writing(directory, size), ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(plain / '.params.new', params)
        checkpointer.wait_until_finished()
    replace_directory(directory / '.params.new', directory / 'params')
    facts = dataclasses.asdict(config) | ({} if head is None else {'head': dict(head)})
    write_atomic(directory / 'model.json', json.dumps(facts, indent=2) + '\n')
