"""The parameters alone as an Orbax directory, for other JAX programs: `params/`, and the model's config beside it."""

import dataclasses
import json
import pathlib
from typing import Any

import orbax.checkpoint as ocp

from bertjax.files import write_atomic
from bertjax.model.config import BertConfig


def export_orbax(params: Any, config: BertConfig, directory: pathlib.Path) -> None:
    """Writes DIR/params (Orbax, StandardSave) and DIR/model.json (the fields of BertConfig); replaces an earlier one.

    Read it with `StandardCheckpointer().restore(DIR / 'params')`; the tree is that of model/bert.py.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((directory / 'params').resolve(), params, force=True)
    write_atomic(directory / 'model.json', json.dumps(dataclasses.asdict(config), indent=2) + '\n')
