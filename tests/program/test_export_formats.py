"""Exports of a finished run in every format, and runs that start from each format."""

import importlib.util
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from running import GLUE, Program, copy_workdir, results

import bertjax

FORMATS = 'hf,orbax,google'


def model(workdir: pathlib.Path) -> dict:
    return safetensors.numpy.load_file(workdir / 'export' / 'hf' / 'model.safetensors')


def test_every_format_is_the_same_model(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """Each export of a task gives the same metrics."""
    workdir = copy_workdir(tuned, tmp_path / 'own')
    (workdir / 'export' / 'onnx').mkdir()
    result = program.run(f'--workdir={workdir}', '--config.run=export', f'--config.export_formats={FORMATS}', **GLUE)
    assert f'{workdir / "export"} also has onnx from an earlier export: export again what is outdated' in result.stdout
    assert [line.split('export/')[1] for line in result.stdout.splitlines() if 'exported to' in line] == FORMATS.split(
        ','
    )
    assert model(workdir).keys() == model(tuned).keys()
    data = next(argument for argument in tune if '.data=' in argument)
    for name in ('orbax', 'google', 'google/bert_model.ckpt'):
        init = f'--config.init={workdir / "export" / name}'
        program.run(f'--workdir={tmp_path / name}', '--config.run=evaluate', '--config.seq_len=24', data, init, **GLUE)
        assert results(tmp_path / name)['splits'] == results(tuned)['splits']


@pytest.mark.slow
def test_pretraining_starts_from_other_formats(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'own')
    result = program.run(f'--workdir={workdir}', '--config.run=export', '--config.export_formats=orbax,google')
    assert f'{workdir / "export"} also has hf from an earlier export (hf is loaded first): ' in result.stdout
    for name in ('google/bert_model.ckpt', 'orbax'):
        init = f'--config.init={workdir / "export" / name}'
        result = program.run(f'--workdir={tmp_path / name}', init, '--config.steps=1', '--config.eval_every=0')
        assert f'starting from {workdir / "export" / name.removesuffix("/bert_model.ckpt")}; ' in result.stdout
    first, other = (model(tmp_path / name) for name in ('google/bert_model.ckpt', 'orbax'))
    assert all(other[key].tobytes() == x.tobytes() for key, x in first.items())


@pytest.mark.slow
def test_the_onnx_model_of_a_task_gives_the_same_logits(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    onnxruntime = pytest.importorskip('onnxruntime', reason="needs the extra 'onnx'")
    workdir = copy_workdir(tuned, tmp_path / 'own')
    result = program.run(f'--workdir={workdir}', '--config.run=export', '--config.export_formats=onnx', **GLUE)
    assert f'exported to {workdir / "export" / "onnx"}' in result.stdout
    bert = bertjax.load(workdir, step=72)  # from the checkpoint
    batch = bert.batch(['river stone bird', 'a bird'], ['the light', 'the old house falls'])
    (logits,) = onnxruntime.InferenceSession(str(workdir / 'export' / 'onnx' / 'task.onnx')).run(['logits'], batch)
    np.testing.assert_allclose(logits, bert.apply(bert.params, batch)['logits'], atol=1e-5)


@pytest.mark.slow
def test_a_pre_ln_model_is_exported_only_to_orbax(program: Program, tmp_path: pathlib.Path):
    short = ('--config.model.pre_norm=True', '--config.steps=1', '--config.eval_every=0')
    line = program.error(f'--workdir={tmp_path / "one"}', *short)
    assert 'config.model.pre_norm: found True' in line and '--config.export_formats=orbax' in line
    program.run(f'--workdir={tmp_path / "one"}', *short, '--config.export_formats=orbax')
    assert [path.name for path in (tmp_path / 'one' / 'export').iterdir()] == ['orbax']


def test_a_format_that_does_not_fit_is_refused_at_once(program: Program, tmp_path: pathlib.Path, monkeypatch):
    google = '--config.export_formats=hf,google'
    line = program.error(f'--workdir={tmp_path}', google, '--config.vocab.family=sentencepiece')
    assert 'config.export_formats: found google with a sentencepiece vocabulary' in line
    line = program.error(f'--workdir={tmp_path}', google, '--config.model.causal=True')
    assert 'config.model.causal: found True with google in config.export_formats' in line
    line = program.error(f'--workdir={tmp_path}', '--config.export_formats=tflite')
    assert "config.export_formats: found 'tflite', expected some of hf, orbax, google, stablehlo, onnx" in line
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    line = program.error(f'--workdir={tmp_path}', '--config.export_formats=hf,onnx')
    assert 'config.export_formats: found onnx without an installed jax2onnx' in line and 'bertjax[onnx]' in line
    assert not list(tmp_path.iterdir())


def test_a_workdir_without_an_export_is_an_error(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'own')
    (workdir / 'export').rename(tmp_path / 'away')
    line = program.error(f'--workdir={tmp_path / "new"}', f'--config.init={workdir}')
    assert f'config.init: found {workdir}, a workdir without an export' in line and '--config.run=export' in line
