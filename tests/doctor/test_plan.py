"""Memory and hours of a pre-training, by the compiler of a slice that need not be there, or by steps here."""

import pathlib
from types import SimpleNamespace

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
    """What the compiler says: 4 s a step at S=32, 36 s at 64, and how much memory the longer one needs."""
    said = SimpleNamespace(gib=8, seconds=36.0)

    class Compiled:
        def __init__(self, settings, topology):
            assert topology == 'v5e:4x4'

        def compile(self, phase):
            long = phase.seq_len == 64
            needed = said.gib * GIB if long else 4 * GIB
            result = {'fits': needed <= 16 * GIB, 'hbm_bytes_per_chip': needed, 'hbm_bytes_available': 16 * GIB}
            return {**result, 'estimated_step_s': said.seconds if long else 4.0}

    monkeypatch.setattr(plan, 'MemorySearch', Compiled)
    return said


def test_hours_on_a_slice(slice_of_tpus):
    settings = settings_of()
    first, second, hours = plan.on_slice(settings, 0, 1000)
    assert first.message == 'phase 0, 256 x 32 on v5e:4x4: 4.0 GiB of 16.0 GiB per chip' and second.status == OK
    assert hours.status == OK and hours.message.startswith(
        '2.0 hours estimated by the compiler for v5e:4x4'
    )  # 900 x 4 + 100 x 36 s
    # Of a run that has begun what is left: of the first phase nothing.
    left, hours = plan.on_slice(settings, 950, 1000)
    assert left.message.startswith('phase 1') and hours.message.startswith('30 minutes')
    assert list(plan.on_slice(settings, 0, None))[-1].message.startswith('7.2 s a step estimated by the compiler')
    slice_of_tpus.seconds = 1e6
    assert [check.status for check in plan.on_slice(settings, 0, 1000)][-1] == WARN
    slice_of_tpus.seconds = None  # the compiler does not know
    assert len(list(plan.on_slice(settings, 0, 1000))) == 2


def test_what_does_not_fit_a_slice(slice_of_tpus):
    slice_of_tpus.gib = 17
    (check,) = [check for check in plan.on_slice(settings_of(), 0, 1000) if check.status == FAIL]
    assert check.message.endswith('17.0 GiB of 16.0 GiB per chip, which does not fit') and 'run=compile' in check.fix


def test_what_cannot_be_here():
    (check,) = plan.on_this_machine(settings_of(batch_size=100_001), 30522, 0, 1000)
    assert check.status == FAIL and 'config.batch_size: found 100001' in check.message
    found = list(plan.config(settings_of(max_predictions=100), pathlib.Path('run')))  # each phase has its own
    assert [check.status for check in found] == [OK] and '2 layers of width 128' in found[0].message
    assert plan.steps_of(settings_of(epochs=2.0)) is None and plan.steps_of(settings_of()) == 1000


def test_what_the_verb_would_refuse(tmp_path: pathlib.Path):
    """Each by the verb's own check, before text is read."""
    for changes, key in (
        ({'push_to': 'me/model', 'export_formats': 'orbax'}, 'config.push_to'),
        ({'heldout_texts': 'bio=/nowhere.txt'}, '/nowhere.txt'),
    ):
        (check,) = plan.config(settings_of(**changes), tmp_path)
        assert check.status == FAIL and key in check.message, check
