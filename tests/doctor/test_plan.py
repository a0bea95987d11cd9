"""Tests the lines of `bertjax doctor` about the memory and hours of a pre-training."""

import pathlib
from types import SimpleNamespace

import jax
import pytest

from bertjax.config.recipes import phase, pretraining_config
from bertjax.doctor import plan
from bertjax.doctor.check import FAIL, OK, WARN
from bertjax.pretrain.settings import pretraining_settings

GIB = 2**30


def settings_of(**changes):
    phases = (phase(steps='90%', seq_len=32, max_predictions=5), phase(steps='10%', seq_len=64, max_predictions=10))
    config = pretraining_config('tiny', steps=1000, phases=phases, topology='v5e:4x4', **changes)
    return pretraining_settings(config)


@pytest.fixture
def slice_of_tpus(monkeypatch: pytest.MonkeyPatch):
    """Returns the adjustable figures of a fake compiler for steps at S=64: `gib` of memory and `seconds`.

    Steps at S=32 need 4 GiB and 4 s.
    """
    figures = SimpleNamespace(gib=8, seconds=36.0)

    class FakeMemorySearch:
        def __init__(self, settings, topology):
            assert topology == 'v5e:4x4'

        def compile(self, phase):
            long = phase.seq_len == 64
            needed = figures.gib * GIB if long else 4 * GIB
            result = {'fits': needed <= 16 * GIB, 'hbm_bytes_per_chip': needed, 'hbm_bytes_available': 16 * GIB}
            return {**result, 'estimated_step_s': figures.seconds if long else 4.0}

    monkeypatch.setattr(plan, 'MemorySearch', FakeMemorySearch)
    return figures


def test_memory_and_hours_on_a_slice(slice_of_tpus):
    settings = settings_of()
    first, second, hours = plan.on_slice(settings, 0, 1000)
    assert first.message == 'phase 0, 256 x 32 on v5e:4x4: 4.0 GiB of 16.0 GiB per chip' and second.status == OK
    # 900 x 4 s + 100 x 36 s
    assert hours.status == OK and hours.message.startswith('2.0 hours estimated by the compiler for v5e:4x4')
    # For a started run, only the remaining steps count. The first phase is finished here.
    left, hours = plan.on_slice(settings, 950, 1000)
    assert left.message.startswith('phase 1') and hours.message.startswith('30 minutes')
    assert list(plan.on_slice(settings, 0, None))[-1].message.startswith('7.2 s a step estimated by the compiler')
    slice_of_tpus.seconds = 1e6
    assert [check.status for check in plan.on_slice(settings, 0, 1000)][-1] == WARN
    slice_of_tpus.seconds = None  # The compiler has no estimate.
    assert len(list(plan.on_slice(settings, 0, 1000))) == 2


def test_a_phase_that_does_not_fit_a_slice_is_a_failure(slice_of_tpus):
    slice_of_tpus.gib = 17
    (check,) = [check for check in plan.on_slice(settings_of(), 0, 1000) if check.status == FAIL]
    assert check.message.endswith('17.0 GiB of 16.0 GiB per chip, which does not fit') and 'run=compile' in check.fix


def test_the_plan_of_this_machine_and_of_the_config():
    (check,) = plan.on_this_machine(settings_of(batch_size=100_001), 0, 1000)
    assert check.status == FAIL and 'config.batch_size: found 100001' in check.message
    # Each phase overrides max_predictions.
    checks = list(plan.config(settings_of(max_predictions=100), pathlib.Path('run')))
    assert [check.status for check in checks] == [OK] and '2 layers of width 128' in checks[0].message
    assert plan.steps_of(settings_of(epochs=2.0)) is None and plan.steps_of(settings_of()) == 1000


@pytest.mark.parametrize(
    ('error', 'message'),
    [
        ('INTERNAL: cuDNN failed', 'JAX cannot compute: INTERNAL: cuDNN failed'),
        ('RESOURCE_EXHAUSTED: Out of memory', 'does not fit on the devices'),
    ],
)
def test_a_failed_step_is_a_failed_check(error: str, message: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*args):
        raise jax.errors.JaxRuntimeError(error)

    monkeypatch.setattr(plan, 'time_phase', fail)
    *_, check = plan.on_this_machine(settings_of(), 0, 1000)
    assert check.status == FAIL and check.message.endswith(message)


def test_errors_of_the_checks_of_pretrain_are_reported(tmp_path: pathlib.Path):
    for changes, key in (
        ({'push_to': 'me/model', 'export_formats': 'orbax'}, 'config.push_to'),
        ({'heldout_texts': 'bio=/nowhere.txt'}, '/nowhere.txt'),
        ({'embeddings': '/nowhere.npy'}, 'config.embeddings'),
        ({'vocab': {'add': '/nowhere.txt'}}, 'config.vocab.add'),
    ):
        (check,) = plan.config(settings_of(**changes), tmp_path)
        assert check.status == FAIL and key in check.message, check
