"""Tests that the trials of a sweep start again only if all their checkpoints are damaged."""

import pathlib
from unittest import mock

import pytest

from bertjax.errors import LostError, UserError
from bertjax.finetune import sweep
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
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception, restarts: bool
):
    checkpoints, start = mock.Mock(), mock.Mock(return_value=(mock.Mock(), [False]))
    checkpoints.latest.side_effect = error
    monkeypatch.setattr(sweep, 'Checkpoints', lambda *args, **options: checkpoints)
    monkeypatch.setattr(sweep, 'resume_or_start', start)
    group = mock.Mock(resolved={}, _folder=tmp_path)
    if restarts:
        sweep.TrialGroup.run(group, mock.Mock())
        assert start.call_args.args[2] is None
    else:
        with pytest.raises(type(error)):
            sweep.TrialGroup.run(group, mock.Mock())
        assert not start.called
    assert checkpoints.close.called
