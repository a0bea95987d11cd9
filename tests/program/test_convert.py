"""run=convert: a finished model in other formats, without a training."""

import json
import pathlib

import pytest
from running import Program, copied

import bertjax

CONVERT = {'recipe': 'configs/convert.py', 'small': False}


def test_a_tuned_model_in_other_formats(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """Every file of its export comes out again, from each format that is read."""
    given, workdir = f'--config.init={tuned}', tmp_path / 'converted'
    formats = '--config.convert.formats=orbax,google,hf'
    out = program.run(f'--workdir={workdir}', given, formats, **CONVERT).stdout
    assert f'using {tuned}; ' in out and f'{workdir / "export" / "google"}' in out and 'checkpoints' not in out
    source = tuned / 'export' / 'hf'
    for name in ('orbax', 'google'):
        bertjax.load(workdir / 'export' / name).save(tmp_path / name)
    for found in (workdir / 'export' / 'hf', tmp_path / 'orbax', tmp_path / 'google'):
        names = {path.name for path in source.iterdir()}
        assert {path.name for path in found.iterdir()} == names
        for name in names - ({'README.md'} if found.parent == tmp_path else set()):  # only the first has the card
            assert (found / name).read_bytes() == (source / name).read_bytes(), found / name
    # Nothing is replaced, and the workdir of one model takes no other.
    line = program.error(f'--workdir={workdir}', given, **CONVERT)
    assert f'--workdir: found {workdir}, which has a model already, expected a new folder; give another folder' in line
    line = program.error(f'--workdir={workdir}', formats, **CONVERT)
    assert f'{workdir / "export" / "orbax"}: found a folder that would be replaced, expected nothing' in line


@pytest.mark.slow
def test_a_checkpoint_in_other_formats(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Of the workdir itself: an older one, beside what is exported already."""
    own = copied(trained, tmp_path / 'own')
    before = (own / 'export' / 'hf' / 'model.safetensors').read_bytes()
    out = program.run(f'--workdir={own}', '--config.step=20', '--config.convert.formats=google', **CONVERT).stdout
    assert f'using {own}, step 20; ' in out
    assert (own / 'export' / 'hf' / 'model.safetensors').read_bytes() == before
    saved, older = bertjax.load(own / 'export' / 'google'), bertjax.load(own, step=20)
    older.save(tmp_path / 'older')
    saved.save(tmp_path / 'saved')
    files = [(tmp_path / name / 'model.safetensors').read_bytes() for name in ('older', 'saved')]
    assert files[0] == files[1] != before
    assert json.loads((tmp_path / 'older' / 'config.json').read_text())['architectures'] == ['BertForPreTraining']


def test_what_cannot_be_converted(program: Program, trained: pathlib.Path, tuned: pathlib.Path, tmp_path: pathlib.Path):
    new = f'--workdir={tmp_path / "new"}'
    assert 'config.init: found nothing, and no model in' in program.error(new, **CONVERT)
    line = program.error(f'--workdir={trained}', f'--config.init={tuned}', **CONVERT)
    assert f'--workdir: found {trained}, which has a model already' in line
    line = program.error(new, f'--config.init={trained}', '--config.convert.formats=hf,tflite', **CONVERT)
    assert "config.convert.formats: found 'hf,tflite', expected some of hf, orbax, google, stablehlo, onnx" in line
    line = program.error(f'--workdir={trained}', '--config.run=convert')
    assert '--config.run=convert: found a recipe without config.convert' in line and 'use the recipe convert' in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_checkpoint_of_tensorflow_becomes_hugging_faces(
    program: Program, shared: pathlib.Path, tmp_path: pathlib.Path
):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    source = shared / 'checkpoints' / 'tf1-tiny-keras-bert'
    program.run(f'--workdir={tmp_path / "new"}', f'--config.init={source}', **CONVERT)
    exported = tmp_path / 'new' / 'export' / 'hf'
    facts = json.loads((exported / 'config.json').read_text())
    _, info = getattr(transformers, facts['architectures'][0]).from_pretrained(exported, output_loading_info=True)
    assert not any(info.values()), info
