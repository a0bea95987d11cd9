"""Orbax exports, as other programs read them."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax.convert.orbax import export_orbax
from bertjax.model.config import BertConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding

READER = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
assert jax.device_count() == 1
with ocp.StandardCheckpointer() as checkpointer:
    params = checkpointer.restore(sys.argv[1])
np.testing.assert_array_equal(params['kernel'], np.arange(16.0).reshape(8, 2))
"""


def test_what_eight_devices_hold_one_device_reads(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    mesh = make_mesh({'data': 8, 'fsdp': 1, 'tensor': 1})
    kernel = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(8, 2), batch_sharding(mesh))
    assert len(kernel.sharding.device_set) == 8
    export_orbax({'kernel': kernel}, BertConfig(), tmp_path)
    monkeypatch.delenv('XLA_FLAGS')
    subprocess.run([sys.executable, '-c', READER, str((tmp_path / 'params').resolve())], check=True)
