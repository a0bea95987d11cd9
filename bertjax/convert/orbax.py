"""The parameters alone as an Orbax directory, for other JAX programs: `params/`, and the model's config beside it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertjax.files.atomic import write_atomic
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
    with ocp.StandardCheckpointer() as checkpointer:
        # Host arrays: they load on any number of devices.
        checkpointer.save((directory / 'params').resolve(), jax.device_get(params), force=True)
    facts = dataclasses.asdict(config) | ({} if head is None else {'head': dict(head)})
    write_atomic(directory / 'model.json', json.dumps(facts, indent=2) + '\n')
