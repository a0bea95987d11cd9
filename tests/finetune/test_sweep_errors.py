"""Tests the errors of sweeps, their groups, and that trials start again only if all checkpoints are damaged."""

import pathlib
from unittest import mock

import pytest

from bertjax.config.files import load_recipe
from bertjax.errors import LostError, UserError
from bertjax.finetune import sweep
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
from bertjax.parallel.distributed import OtherStoppedError


@pytest.mark.parametrize(
    ('error', 'restarts'),
    [
        (UserError('checkpoints', 'damaged', 'whole', 'begin'), True),
        (OtherStoppedError(UserError.exit_status), True),
        (OtherStoppedError(1), False),  # A traceback in the primary process.
        (LostError(), False),
        (OSError(5, 'Input/output error'), False),
    ],
)
def test_trials_restart_only_after_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys, error: Exception, restarts: bool
):
    checkpoints, start = mock.Mock(), mock.Mock(return_value=(mock.Mock(), [False]))
    checkpoints.latest.side_effect = error
    monkeypatch.setattr(sweep, 'Checkpoints', lambda *args, **options: checkpoints)
    monkeypatch.setattr(sweep, 'resume_or_start', start)
    folders = [tmp_path / 'trials' / name for name in ('lr=1', 'lr=2')]
    folders[1].mkdir(parents=True)
    (folders[1] / 'ledger.jsonl').touch()
    group = mock.Mock(resolved={'init': 'small'}, folders=folders, _folder=tmp_path)
    if restarts:
        sweep.TrialGroup.run(group, mock.Mock())
        assert start.call_args.args[2] is None
        message = 'starting again at step 0, because no undamaged checkpoint has exactly these runs: lr=2\n'
        assert capsys.readouterr().out == message
    else:
        with pytest.raises(type(error)):
            sweep.TrialGroup.run(group, mock.Mock())
        assert not start.called
    assert checkpoints.close.called


def test_a_group_continues_in_a_moved_workdir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """The rows of a Python program are in the workdir, and the first model of a benchmark is beside it."""
    checkpoints = mock.MagicMock()
    monkeypatch.setattr(sweep, 'Checkpoints', checkpoints)
    monkeypatch.setattr(sweep, 'resume_or_start', mock.Mock(return_value=(mock.Mock(), [False])))
    monkeypatch.chdir(tmp_path)
    for name in ('old', 'new'):
        (tmp_path / name / 'mnli').mkdir(parents=True)
    # The last model is on the Hub.
    for parent, init in ((tmp_path / 'old', 'old/mnli'), (tmp_path / 'new', 'new/mnli'), (tmp_path, 'mnli')):
        resolved = {'init': init, 'data': f'{parent}/rte/rows/1/rte'}
        sweep.TrialGroup.run(mock.Mock(resolved=resolved, folders=[], _folder=parent / 'rte'), mock.Mock())
    first, moved, other = (call.args[0].name for call in checkpoints.call_args_list)
    assert first == moved != other


def test_a_group_fits_with_a_copy_of_its_states(monkeypatch: pytest.MonkeyPatch):
    def lower(*_, members: int) -> mock.Mock:
        memory = mock.Mock(argument_size_in_bytes=10 * members, temp_size_in_bytes=members)
        return mock.Mock(**{'step.return_value.compile.return_value.memory_analysis.return_value': memory})

    monkeypatch.setattr(sweep, 'StepLowering', lower)
    monkeypatch.setattr(sweep.jax, 'local_devices', lambda: [mock.Mock(**{'memory_stats.return_value': limit})])
    group, limit = mock.Mock(**{'phases.return_value': [mock.MagicMock(batches={8: None})]}), {'bytes_limit': 100}
    assert sweep.find_group_size(group, 8) == 4


@pytest.mark.parametrize(('key', 'value'), [('patience', 2), ('use_checkpoint', 'best')])
def test_a_sweep_refuses_to_choose_a_step(repository: pathlib.Path, key: str, value):
    config = load_recipe(f'{repository}/configs/glue.py:rte')
    with config.unlocked():
        config.update({key: value, 'init': 'small', 'eval_every': 5})
    finetuning_settings(config).check()
    config.sweep.seeds = (0, 1)
    with pytest.raises(UserError, match=rf'config\.{key}: found {value!r} in a sweep'):
        finetuning_settings(config).check()


def test_seeds_without_effect_are_refused(repository: pathlib.Path):
    """With all of config.seeds set, the trials of a sweep over seeds would be equal."""
    config = load_recipe(f'{repository}/configs/glue.py:rte,seeds=2')
    config.seeds.update(init=0, data=0)
    assert len(make_trials(finetuning_settings(config))) == 2
    config.seeds.dropout = 0
    with pytest.raises(
        UserError, match=r'config.sweep.seeds: found \(0, 1\), but config.seeds sets all seeds.*seeds.data=-1'
    ):
        make_trials(finetuning_settings(config))
