"""Tests abstract TPU slices: their devices and the properties of their chips."""

import importlib.util
import json
import os
import platform
import subprocess
import sys

import pytest
from jax.experimental import topologies

from bertjax.errors import UserError
from bertjax.parallel.topology import generation_of, ici_bandwidth, slice_chips, topology_devices

# Runs in a separate process, so that a crash of the TPU compiler does not end pytest.
SLICES = """
import json, sys
from bertjax.parallel.topology import generation_of, topology_devices
from bertjax.training.health.throughput import peak_flops

for name in sys.argv[1:]:
    devices, memory = topology_devices(name), generation_of(name).hbm_bytes
    print(json.dumps([len(devices) * memory / 2**30, sum(peak_flops(one.device_kind) for one in devices) / 1e12]))
"""
# A slice -> (GiB, TFLOP/s) per chip, from Google Cloud's pages. On v3, JAX has two devices for a chip.
CHIPS = {
    'v3:2x2': (32, 123),
    'v4:2x2x1': (32, 275),
    'v5e:1x1': (16, 197),
    'v5e:2x2': (16, 197),
    'v5p:2x2x1': (95, 459),
    'v6e:2x2': (32, 918),
}


@pytest.mark.slow
def test_memory_and_peak_of_the_devices_add_up_to_those_of_the_chips():
    pytest.importorskip('libtpu', reason="needs the TPU compiler of the extras 'tpu' and 'test'")
    environment = {'PATH': '', 'PYTHONPATH': os.environ.get('PYTHONPATH', '')}
    command = [sys.executable, '-c', SLICES, *CHIPS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    totals = [json.loads(line) for line in done.stdout.splitlines()]
    assert totals == [[slice_chips(name) * each for each in CHIPS[name]] for name in CHIPS]


@pytest.mark.parametrize(
    ('name', 'chips', 'links'),
    [
        ('v5e:4x4', 16, 2),  # Without rings, one link along each side counts.
        ('v5e:4x4', 4, 1),
        ('v5e:4x16', 64, 3),  # A side of 16 is a ring.
        ('v5e:16x16', 256, 4),
        ('v5e:1x1', 1, 1),
        ('v5p:2x2x4', 16, 3),  # There are rings only if all sides are multiples of 4.
        ('v5p:4x4x8', 128, 6),
        ('v5p:4x4x8', 8, 2),
        ('v6e:8x8', 64, 2),
        ('2*v5e:16x16', 256, 4),  # Only the links inside a slice count.
    ],
)
def test_the_number_of_links_of_a_group_of_chips(name: str, chips: int, links: int):
    assert ici_bandwidth(name, chips) == links * generation_of(name).link_bandwidth
    assert slice_chips(name) >= chips


def test_the_sum_of_links_equals_the_data_sheets():
    """The data sheets give both directions of all links of a chip in GB/s, as "bidirectional ICI"."""
    bidirectional = {'v5e:16x16': 400, 'v6e:16x16': 800, 'v5p:4x4x4': 1200}
    for name, bandwidth in bidirectional.items():
        assert 2 * ici_bandwidth(name, slice_chips(name)) == bandwidth * 1e9


@pytest.mark.parametrize(
    ('machine', 'fix'), [('x86_64', "pip install 'bertjax[tpu]'"), ('aarch64', 'compile for TPUs on Linux on x86-64')]
)
def test_a_missing_tpu_compiler_is_an_error(machine: str, fix: str, monkeypatch: pytest.MonkeyPatch):
    """On machines for which libtpu does not exist, the error does not suggest to install it."""

    def fail(*arguments, **options):
        raise RuntimeError('no libtpu')

    monkeypatch.setattr(topologies, 'get_topology_desc', fail)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setattr(sys, 'platform', 'linux')
    monkeypatch.setattr(platform, 'machine', lambda: machine)
    with pytest.raises(UserError) as error:
        topology_devices('v5e:4x4')
    assert fix in error.value.fix and error.value.found == 'no libtpu'


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('v5e', 'v5e:4x4'),
        ('v5e:4xx4', 'v5e:4x4'),
        ('0*v5e:4x4', '2*v5e:16x16'),
        ('2*v4:2x2x1', 'slices of v5e, v5p, v6e'),
    ],
)
def test_unknown_names_are_refused(name: str, text: str):
    with pytest.raises(UserError) as error:
        topology_devices(name)
    assert error.value.where == 'config.topology' and text in error.value.expected
