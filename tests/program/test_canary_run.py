"""No training starts if XLA computes wrong gradients."""

import pathlib

import jaxlib
import pytest
from running import GLUE, Program

from bertjax.training.health import gradient_check


@pytest.mark.parametrize('options', [{}, GLUE], ids=['pretrain', 'finetune'])
def test_wrong_gradients_prevent_training(
    program: Program, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, options: dict
):
    monkeypatch.setattr(gradient_check, 'EXPECTED', {'up': (1.0, 0.0)})
    gradient_check.check_gradients.cache_clear()
    try:
        line = program.error(f'--workdir={tmp_path}', '--config.data=nowhere', **options)
    finally:
        gradient_check.check_gradients.cache_clear()
    assert f'jaxlib {jaxlib.__version__} on cpu: found a wrong gradient' in line
    assert not list(tmp_path.rglob('metrics.jsonl'))
