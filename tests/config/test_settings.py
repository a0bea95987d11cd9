"""Tests settings that depend on several keys or on the amount of training data."""

import json

import jax
import numpy as np
import pytest

from bertjax.config.recipes import finetuning_config, phase, pretraining_config
from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.model.config import BertConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.warm_start import with_architecture
from bertjax.training import settings as train_settings


def finetuning(**keys) -> FinetuningSettings:
    config = finetuning_config('glue', task='rte')
    for key, value in keys.items():
        config[key] = value
    return finetuning_settings(config)


@pytest.mark.parametrize(
    ('keys', 'steps'),
    [({}, 120), ({'steps': 7}, 7), ({'steps': '0.5epochs'}, 20), ({'steps': '0'}, 120), ({'steps': '0epochs'}, 120)],
)
def test_the_number_of_fine_tuning_steps(keys: dict, steps: int):
    assert finetuning(**keys).total_steps(40) == steps


@pytest.mark.parametrize('keys', [{'steps': '0.01epochs'}, {'epochs': 0.01}, {'epochs': 0.01, 'sweep.epochs': (0.01,)}])
def test_a_fine_tuning_of_zero_steps_is_refused(keys: dict):
    config = finetuning_config('glue', task='rte')
    config.update_from_flattened_dict(keys)
    message = f'config.{[*keys][-1]}: found 0.01 ?epochs, with 40 batches an epoch, expected at least'
    with pytest.raises(UserError, match=message):
        finetuning_settings(config).total_steps(40)


def test_options_of_the_task_are_checked_even_if_nothing_is_trained():
    for verb in ('finetune', 'evaluate', 'predict'):
        with pytest.raises(UserError, match=r'config\.task\.stride'):
            finetuning(run=verb, task={'kind': 'glue', 'task': 'rte', 'stride': 8}).check()


def test_a_short_interval_is_a_step_and_not_never():
    for interval, steps in (('2%', 1), ('0.01 epochs', 1), ('0%', 0), ('0 epochs', 0), ('2 epochs', 40)):
        settings = finetuning(eval_every=interval)
        assert train_settings.resolve_durations(settings, total=20, steps_per_epoch=20)['eval_every'] == steps


@pytest.mark.parametrize('never', [0, '0', '0%', '0 epochs'])
def test_patience_without_evaluations_is_refused(never: int | str):
    with pytest.raises(UserError, match=r'config.patience: found 2 with config.eval_every='):
        finetuning(patience=2, eval_every=never).check()


@pytest.mark.parametrize(
    ('key', 'value'), [('seq_len', 1024), ('max_predictions', 200), ('grad_accum_steps', 7), ('batch_size', 2**20)]
)
@pytest.mark.parametrize('in_phase', [False, True])
def test_the_error_names_the_key_of_the_phase_only_if_the_phase_sets_it(key: str, value: int, in_phase: bool):
    phases = (phase(steps='50%', batch_size=64), phase(steps='50%', **({key: value} if in_phase else {})))
    config = pretraining_config('base', phases=phases, **({} if in_phase else {key: value}))
    if key == 'batch_size' and not in_phase:
        config.phases = phases[1:] * 2
    settings = pretraining_settings(config)
    with pytest.raises(UserError) as error:
        settings.check()
        settings.check_devices(make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1]))
    assert error.value.where == (f'config.phases[1].{key}' if in_phase else f'config.{key}')


@pytest.mark.parametrize(('zero1', 'fits'), [('off', False), ('auto', True)])
def test_a_state_over_the_data_axis_needs_less_memory(monkeypatch: pytest.MonkeyPatch, zero1: str, fits: bool):
    config = pretraining_config('base', mesh={'data': 8, 'fsdp': 1, 'tensor': 1}, zero1=zero1, batch_size=8)
    memory = 800 << 20  # parameters and moments take 1.3 GB
    monkeypatch.setattr(train_settings, 'device_memory', lambda mesh: memory)
    check = pretraining_settings(config).check_devices
    mesh = make_mesh({'data': 8, 'fsdp': 1, 'tensor': 1}, jax.devices()[:8])
    if fits:
        check(mesh)
        return
    with pytest.raises(UserError, match=r'config\.model: .* at least 1.2 GiB per device'):
        check(mesh)


def test_an_evaluation_that_does_not_fit_gets_no_advice_on_training(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train_settings, 'device_memory', lambda mesh: 800 << 20)
    mesh = make_mesh({'data': 8, 'fsdp': 1, 'tensor': 1}, jax.devices()[:8])
    config = finetuning_config('glue', task='rte')
    config.eval_batch_size = 2**24
    with pytest.raises(UserError, match=r'config\.eval_batch_size: .*; lower eval_batch_size or seq_len$'):
        finetuning_settings(config).check_memory(BertConfig(), mesh, training=False)


def ramped(start: int, ramp: float = 0.4, **keys) -> PretrainingSettings:
    ramp = phase(steps='50%', batch_ramp=ramp, batch_size_start=start, reset_optimizer=True)
    return pretraining_settings(pretraining_config('tiny', phases=(phase(steps='50%'), ramp), batch_size=96, **keys))


@pytest.mark.parametrize(
    ('start', 'sizes', 'ends'),
    [
        (48, [48, 96], [140, 200]),
        (24, [24, 48, 72, 96], [113, 127, 140, 200]),
        (2, [2, 14, 26, 38, 48, 60, 72, 84, 96], [105, 110, 115, 120, 125, 130, 135, 140, 200]),
    ],
)
def test_the_stages_of_a_batch_ramp(start: int, sizes: list[int], ends: list[int]):
    parts = ramped(start).resolve_phases(200)[1].split()
    assert [part.batch_size for part in parts] == sizes and [part.last_step for part in parts] == ends
    assert [part.first_step for part in parts] == [100, *ends[:-1]]
    assert {(part.number, part.schedule_steps, part.reset_optimizer) for part in parts} == {(1, (100, 200), True)}
    assert [part.batches[128]['input_ids'][0] for part in parts] == [(size, 128) for size in sizes]
    steps = [part.last_step - part.first_step for part in parts]
    whole = ramped(start).resolve_phases(200)[1]
    assert (whole.examples_until(90), whole.examples_until(200)) == (0, int(np.dot(steps, sizes)))


def test_a_ramp_of_fewer_steps_than_stages_skips_stages_and_a_phase_may_have_no_ramp():
    plain, ramp = ramped(2).resolve_phases(20)
    parts = ramp.split()
    assert all(part.first_step < part.last_step for part in parts) and len(parts) == 5
    assert parts[-1].last_step == 20 and parts[-1].batch_size == 96
    assert plain.split() == [plain] and plain.schedule_steps is None
    phases = ramped(2).unresolved_phases
    assert [phase.smallest_batch for phase in phases] == [('batch_size', 96), ('phases[1].batch_size_start', 2)]


@pytest.mark.parametrize(
    ('key', 'start', 'keys'),
    [
        ('batch_ramp', 0, {}),
        ('batch_ramp', 24, {'ramp': 0.0}),
        ('batch_size_start', 96, {}),
        ('batch_size_start', 36, {}),
        ('batch_size_start', 6, {'grad_accum_steps': 4}),
    ],
)
def test_batch_ramps_that_do_not_fit_are_refused(key: str, start: int, keys: dict):
    with pytest.raises(UserError) as error:
        ramped(start, **keys).check()
    assert error.value.where == f'config.phases[1].{key}'


def test_the_warmup_and_decay_of_a_phase_must_fit():
    phases = (phase(steps='50%'), phase(steps='50%', warmup_fraction=0.6))
    config = pretraining_config('tiny', phases=phases)
    config.schedule.update(name='wsd', decay_fraction=0.5)
    with pytest.raises(UserError, match=r'config.schedule.decay_fraction: .* config.phases\[1\].warmup_fraction=0.6'):
        pretraining_settings(config).check()


def test_a_decay_of_a_phase_needs_a_schedule_with_a_decay():
    config = pretraining_config('tiny', phases=(phase(steps='50%'), phase(steps='50%', decay_fraction=0.5)))
    found = r"config\.phases\[1\]\.decay_fraction: found 0\.5 with the schedule 'linear', .*schedule\.name=wsd"
    with pytest.raises(UserError, match=found):
        pretraining_settings(config).check()
    config.phases[1].schedule = 'wsd'
    pretraining_settings(config).check()


def test_pairs_are_predicted_from_cls():
    config = pretraining_config('tiny', export_formats='orbax')
    config.model.pooling = 'mean'
    with pytest.raises(UserError, match=r"config\.model\.pooling: found 'mean' with config\.pairs\.mode=nsp"):
        pretraining_settings(config).check()
    config.pairs.mode = 'doc_sentences'
    pretraining_settings(config).check()


def test_the_warmup_and_decay_of_a_fine_tuning_must_fit():
    config = finetuning_config('glue', task='rte')
    config.warmup_fraction = 0.6
    config.schedule.update(name='wsd', decay_fraction=0.5)
    found = r'config\.schedule\.decay_fraction: found 0\.5 with config\.warmup_fraction=0\.6, expected at most 0\.4'
    with pytest.raises(UserError, match=found):
        finetuning_settings(config).check()


def test_the_mask_rates_of_phases():
    """A phase may override the mask rates of the run. `max_predictions` must be enough for the highest rate."""
    phases = (phase(steps='50%'), phase(steps='30%', mask_rate=0.1), phase(steps='20%', final_mask_rate=0.2))
    config = pretraining_config('tiny', phases=phases, seq_len=64, max_predictions=16, steps=10)
    config.masking.rate = 0.25
    rates = lambda: [(p.mask_rate, p.final_mask_rate) for p in pretraining_settings(config).resolve_phases(10)]  # noqa: E731
    assert rates() == [(0.25, 0.25), (0.1, 0.1), (0.25, 0.2)]
    config.masking.final_rate = 0.05
    assert rates() == [(0.25, 0.05), (0.1, 0.05), (0.25, 0.2)]
    config.phases[1].final_mask_rate = 0.5
    found = r'config\.max_predictions: found 16, expected at least 32 with this mask rate: 50% of seq_len'
    with pytest.raises(UserError, match=found):
        pretraining_settings(config).check()
    config.masking.static = True
    with pytest.raises(UserError, match=r'config\.masking\.static: found True with a mask rate from 0\.25 to 0\.05'):
        pretraining_settings(config).check()


@pytest.mark.parametrize(('keys', 'at_fault'), [({'epochs': 0.01}, 'epochs'), ({'steps': '0.01Epochs'}, 'steps')])
def test_a_pre_training_of_zero_steps_is_refused(keys: dict, at_fault: str):
    settings = pretraining_settings(pretraining_config('tiny', **keys))
    settings.check()  # the number of steps in an epoch is not known yet
    found = rf'config\.{at_fault}: found 0\.01( epochs of 1,000 examples|Epochs), expected at least 1 step'
    with pytest.raises(UserError, match=found):
        settings.total_steps(1000.0)


def test_a_started_run_keeps_its_scan_layers(tmp_path):
    """The recipe may have changed since. A flag on the command line is not overridden; `check_resume` refuses it."""
    (tmp_path / 'checkpoints' / '3').mkdir(parents=True)
    config = pretraining_config('tiny')
    (tmp_path / 'config.json').write_text(json.dumps({'model': config.model.to_dict()}))
    config.model.scan_layers = False
    settings = pretraining_settings(config)
    resumed = with_architecture(settings, tmp_path)
    assert resumed.model.scan_layers and not settings.model.scan_layers
    assert with_architecture(settings, tmp_path / 'new') == settings
    assert with_architecture(settings, tmp_path, flag_keys=['model.scan_layers']) == settings


def test_percentages_that_round_to_more_steps_are_refused():
    settings = pretraining_settings(pretraining_config('tiny', phases=[phase(steps='10%') for _ in range(10)]))
    lengths = [part.last_step - part.first_step for part in settings.resolve_phases(14)]
    assert lengths == [*[1] * 9, 5]
    with pytest.raises(UserError, match=r'config\.phases: found 2 \+ .*= 18 steps, expected config\.steps = 15; raise'):
        settings.resolve_phases(15)
