"""What a sweep takes for checkpoints that are all damaged, so that its trials begin again: nothing else is."""

import pathlib
from unittest import mock

import pytest

from bertjax.errors import LostError, UserError
from bertjax.finetune import sweep
from bertjax.parallel.distributed import OtherStoppedError


@pytest.mark.parametrize(
    ('error', 'begins'),
    [
        (UserError('checkpoints', 'damaged', 'whole', 'begin'), True),
        (OtherStoppedError(UserError.exit_status), True),
        (OtherStoppedError(1), False),  # a traceback in the first process
        (LostError(), False),
        (OSError(5, 'Input/output error'), False),
    ],
)
def test_only_damaged_checkpoints_are_passed_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception, begins: bool
):
    checkpoints, begin = mock.Mock(), mock.Mock(return_value=(mock.Mock(), [False]))
    checkpoints.latest.side_effect = error
    monkeypatch.setattr(sweep, 'Checkpoints', lambda *args, **options: checkpoints)
    monkeypatch.setattr(sweep, 'resume_or_start', begin)
    group = mock.Mock(resolved={}, _folder=tmp_path)
    if begins:
        sweep.TrialGroup.run(group, mock.Mock())
        assert begin.call_args.args[2] is None
    else:
        with pytest.raises(type(error)):
            sweep.TrialGroup.run(group, mock.Mock())
        assert not begin.called
    assert checkpoints.close.called
