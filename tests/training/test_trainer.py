"""Tests how a training starts."""

import pathlib
import types
from unittest import mock

import jax
import pytest

from bertjax.parallel.mesh import make_mesh
from bertjax.training import trainer


def test_the_recorder_is_closed_if_its_files_cannot_be_truncated(tmp_path: pathlib.Path, monkeypatch):
    recorder = mock.Mock()
    recorder.truncate_after.side_effect = OSError(5, 'Input/output error')
    monkeypatch.setattr(trainer, 'Recorder', lambda *arguments, **options: recorder)
    settings = types.SimpleNamespace(steps=10, profile='', hang_minutes=0, patience=0)
    experiment = mock.Mock(settings=settings, folders=[tmp_path])
    experiment.setup.mesh = make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1])
    experiment.describe.return_value = experiment.details.return_value = ''
    phase = types.SimpleNamespace(last_step=10, batch_size=8)
    experiment.phases.return_value = [mock.Mock(stacked=False, settings=phase, flops_per_row=1.0)]
    with pytest.raises(OSError, match='Input/output error'):
        trainer.resume_or_start(experiment, mock.Mock(), None, mock.Mock())
    recorder.close.assert_called_once_with()
