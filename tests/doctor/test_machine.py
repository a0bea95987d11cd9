"""Tests the lines of `bertjax doctor` about the machine: packages, devices, disk and workdir."""

import importlib.metadata
import io
import pathlib
import shutil
import tempfile
import types
from unittest import mock

import jax
import pytest

from bertjax.doctor import machine
from bertjax.doctor.check import FAIL, OK, WARN, Check, check, print_checks
from bertjax.errors import UserError
from bertjax.files.atomic import lock_directory
from bertjax.parallel import devices
from bertjax.terminal import Console

REQUIREMENTS = {
    'bertjax': ['numpy>=2.1', 'jax[tpu]>=0.10.2; extra == "tpu"'],
    'jax': [
        'jaxlib<=0.10.2,>=0.10.1', 'jaxlib==0.10.1; extra == "minimum-jaxlib"', 'libtpu==0.0.42.*; extra == "tpu"',
        'jax-cuda13-plugin[with-cuda]<=0.10.2,>=0.10.2; extra == "cuda13"', 'scipy>=1.14; python_version < "3"',
    ],
}  # fmt: skip
GOOD = {'bertjax': '0.1.0', 'jax': '0.10.2', 'jaxlib': '0.10.2', 'numpy': '2.2', 'libtpu': '0.0.42.1'}


@pytest.mark.parametrize(
    ('installed', 'status', 'text'),
    [
        ({}, OK, 'jax 0.10.2, jaxlib 0.10.2, libtpu 0.0.42.1'),
        ({'jaxlib': '0.9.0'}, FAIL, "jaxlib 0.9.0, and jax 0.10.2 needs <=0.10.2,>=0.10.1; pip install 'jaxlib<="),
        ({'libtpu': '0.0.52'}, WARN, 'libtpu 0.0.52, and jax 0.10.2 was released with 0.0.42.*; pip install'),
        ({'jax-cuda13-plugin': '0.10.0'}, WARN, 'jax-cuda13-plugin 0.10.0, and jax 0.10.2 was released with'),
        ({'numpy': '1.26'}, FAIL, 'numpy 1.26, and bertjax 0.1.0 needs >=2.1'),
        ({'numpy': None}, FAIL, 'no numpy, and bertjax 0.1.0 needs >=2.1'),
    ],
)
def test_incompatible_packages_are_reported(monkeypatch: pytest.MonkeyPatch, installed: dict, status: str, text: str):
    packages = GOOD | installed

    def version(name: str) -> str:
        if packages.get(name) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(importlib.metadata, 'version', version)
    monkeypatch.setattr(importlib.metadata, 'requires', REQUIREMENTS.get)
    (check,) = machine.versions()
    assert check.status == status and text in f'{check.message}; {check.fix}'


def test_an_unused_or_unavailable_accelerator_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, 'may_have_tpu', lambda: False)
    monkeypatch.setattr(devices, '_may_have_nvidia_gpu', lambda: True)
    (check,) = machine.devices()
    assert check.status == WARN and 'though this machine has a GPU' in check.message and 'bertjax[cuda]' in check.fix
    assert devices.unused_accelerator('gpu') == ''

    def fail():
        raise RuntimeError('TPU is already in use by process 7\nand more')

    monkeypatch.setattr(jax, 'devices', fail)
    (check,) = machine.devices()
    assert check.status == FAIL and check.message.startswith("JAX's devices: found TPU is already in use by process 7,")

    error = jax.errors.JaxRuntimeError('INTERNAL: cuDNN failed\nand more')
    monkeypatch.setattr(machine, 'training_devices', mock.Mock(side_effect=error))
    (check,) = machine.devices()
    assert check.status == FAIL and check.message == 'JAX cannot compute: INTERNAL: cuDNN failed'
    error = jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')
    monkeypatch.setattr(machine, 'training_devices', mock.Mock(side_effect=error))
    (check,) = machine.devices()
    assert check.status == FAIL and check.fix.endswith('or raise config.grad_accum_steps if there are none')


def test_a_disk_with_too_little_space_is_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=5 * 2**30))
    needed = {'two checkpoints': 2 * 2**30, '3 more': 2**30}
    (check,) = machine.disk_space(tmp_path / 'a' / 'b', needed)
    assert check.status == OK and check.message == '5.0 GiB free; two checkpoints 2.0 GiB, 3 more 1.0 GiB'
    assert [check.status for check in machine.disk_space(tmp_path, {**needed, '3 more': 4 * 2**30})] == [WARN]
    assert [check.status for check in machine.disk_space(tmp_path, {**needed, 'two checkpoints': 6 * 2**30})] == [FAIL]


def test_a_workdir_that_is_in_use_or_not_writable_is_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    assert not machine.is_at_work(tmp_path) and not machine.is_at_work(tmp_path / 'new')
    with lock_directory(tmp_path, 'trains'):
        assert machine.is_at_work(tmp_path)
    assert [check.status for check in machine.workdir(tmp_path)] == [OK] and not list(tmp_path.iterdir())

    def deny(**options):
        raise PermissionError(13, 'Permission denied', str(tmp_path))

    monkeypatch.setattr(tempfile, 'TemporaryFile', deny)
    (check,) = machine.workdir(tmp_path)
    assert check.status == FAIL and 'permission denied' in check.message and 'change its permissions' in check.fix
    (check,) = machine.workdir(tmp_path / 'new' / 'run')  # The run would create it in tmp_path.
    assert check.status == FAIL and f'{tmp_path}: found' in check.message


def test_each_check_and_each_error_is_printed_on_one_line(tmp_path: pathlib.Path):
    """Control characters are escaped."""

    @check('corpus')
    def checks():
        yield Check('corpus', OK, 'fine')
        raise UserError('config.corpus', 'a\x1b[2J', 'text', 'give text')

    out = io.StringIO()
    counts = print_checks(Console(file=out, soft_wrap=True, highlight=False), 'this config', checks())
    assert out.getvalue().splitlines() == [
        '', 'this config', '  ok    corpus       fine',
        '  FAIL  corpus       config.corpus: found a\\x1b[2J, expected text; give text',
    ]  # fmt: skip
    assert counts == {OK: 1, FAIL: 1}
