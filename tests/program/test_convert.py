"""run=convert: exports a finished model in other formats without training."""

import json
import pathlib
import shutil

import pytest
from running import GLUE, Program, copy_workdir, results

import bertjax

CONVERT = {'recipe': 'configs/convert.py', 'small': False}


def test_a_tuned_model_is_converted(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """A model that is read from any format is saved with the same files as the original export."""
    init, workdir = f'--config.init={tuned}', tmp_path / 'converted'
    formats = '--config.convert.formats=orbax,google,hf'
    out = program.run(f'--workdir={workdir}', init, formats, **CONVERT).stdout
    assert f'using {tuned}; ' in out and f'{workdir / "export" / "google"}' in out and 'checkpoints' not in out
    source = tuned / 'export' / 'hf'
    for name in ('orbax', 'google'):
        bertjax.load(workdir / 'export' / name).save(tmp_path / name)
    for folder in (workdir / 'export' / 'hf', tmp_path / 'orbax', tmp_path / 'google'):
        names = {path.name for path in source.iterdir()}
        assert {path.name for path in folder.iterdir()} == names
        for name in names - (
            {'README.md'} if folder.parent == tmp_path else set()
        ):  # Bert.save writes another README.md
            assert (folder / name).read_bytes() == (source / name).read_bytes(), folder / name
    # No file is replaced, and a workdir with a model refuses another model.
    line = program.error(f'--workdir={workdir}', init, **CONVERT)
    assert f'--workdir: found {workdir}, which has a model already, expected a new folder; give another folder' in line
    line = program.error(f'--workdir={workdir}', formats, **CONVERT)
    assert f'{workdir / "export" / "orbax"}: found a folder that would be replaced, expected nothing' in line


def test_a_reordered_head_is_saved_with_the_names_of_its_outputs(tuned: pathlib.Path, tmp_path: pathlib.Path, caplog):
    """Another program has written the outputs of the head in another order than task.json."""
    permuted = tmp_path / 'permuted'
    shutil.copytree(tuned / 'export' / 'hf', permuted)
    config = json.loads((permuted / 'config.json').read_text())
    names = list(config['id2label'].values())
    config['id2label'] = dict(enumerate(reversed(names)))
    config['label2id'] = {name: i for i, name in config['id2label'].items()}
    (permuted / 'config.json').write_text(json.dumps(config))
    bert = bertjax.load(permuted)
    bert.save(tmp_path / 'saved')
    assert list(json.loads((tmp_path / 'saved' / 'config.json').read_text())['id2label'].values()) == names
    pair = ('a text', 'another')
    assert bertjax.load(tmp_path / 'saved').classify(*pair) == bert.classify(*pair)
    bert.save(tmp_path / 'orbax', format='orbax')
    assert not caplog.records  # Orbax warns about its own options


def test_a_copy_of_a_foreign_classifier_is_evaluated_as_the_original(
    program: Program, tuned: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path
):
    """A folder of transformers names the outputs of its head, in any order, but not the task."""
    source, copies = tmp_path / 'source', tmp_path / 'copies'
    shutil.copytree(tuned / 'export' / 'hf', source)
    (source / 'task.json').unlink()
    config = json.loads((source / 'config.json').read_text())
    names = [*config['id2label'].values()][::-1]
    config |= {'id2label': dict(enumerate(names)), 'label2id': {name: i for i, name in enumerate(names)}}
    (source / 'config.json').write_text(json.dumps(config))
    program.run(f'--workdir={copies}', f'--config.init={source}', '--config.convert.formats=hf,orbax,google', **CONVERT)
    flags, figures = ('--config.run=evaluate', f'--config.data={rte}'), []
    for i, init in enumerate([source, *(copies / 'export' / name for name in ('hf', 'orbax', 'google'))]):
        program.run(f'--workdir={tmp_path / str(i)}', f'--config.init={init}', *flags, **GLUE)
        figures.append(results(tmp_path / str(i))['splits'])
    assert figures == figures[:1] * 4
    assert figures[0]['dev']['accuracy'] != pytest.approx(results(tuned)['splits']['dev']['accuracy'])  # reversed
    task = json.loads((tuned / 'export' / 'hf' / 'task.json').read_text())
    (source / 'task.json').write_text(json.dumps({**task, 'finished': False}))  # an early export of our own run
    line = program.error(
        f'--workdir={tmp_path / "own"}', f'--config.init={source}', *flags, recipe='configs/multi_label.py', small=False
    )
    assert "config.task.kind: found 'multi_label', expected 'glue', as in " in line


@pytest.mark.slow
def test_an_older_checkpoint_is_converted(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'own')
    before = (workdir / 'export' / 'hf' / 'model.safetensors').read_bytes()
    out = program.run(f'--workdir={workdir}', '--config.step=20', '--config.convert.formats=google', **CONVERT).stdout
    assert f'using {workdir}, step 20; ' in out
    assert (workdir / 'export' / 'hf' / 'model.safetensors').read_bytes() == before
    saved, older = bertjax.load(workdir / 'export' / 'google'), bertjax.load(workdir, step=20)
    older.save(tmp_path / 'older')
    saved.save(tmp_path / 'saved')
    files = [(tmp_path / name / 'model.safetensors').read_bytes() for name in ('older', 'saved')]
    assert files[0] == files[1] != before
    assert json.loads((tmp_path / 'older' / 'config.json').read_text())['architectures'] == ['BertForPreTraining']


def test_wrong_conversions_are_errors(
    program: Program, trained: pathlib.Path, tuned: pathlib.Path, tmp_path: pathlib.Path
):
    new = f'--workdir={tmp_path / "new"}'
    assert 'config.init: found nothing, and no model in' in program.error(new, **CONVERT)
    line = program.error(f'--workdir={trained}', f'--config.init={tuned}', **CONVERT)
    assert f'--workdir: found {trained}, which has a model already' in line
    line = program.error(new, f'--config.init={trained}', '--config.convert.formats=hf,tflite', **CONVERT)
    assert "config.convert.formats: found 'hf,tflite', expected some of hf, orbax, google, stablehlo, onnx" in line
    line = program.error(f'--workdir={trained}', '--config.run=convert')
    assert '--config.run=convert: found a recipe without config.convert' in line and 'such as convert' in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_tensorflow_checkpoint_is_converted_to_hugging_face(
    program: Program, shared: pathlib.Path, tmp_path: pathlib.Path
):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    source = shared / 'checkpoints' / 'tf1-tiny-keras-bert'
    program.run(f'--workdir={tmp_path / "new"}', f'--config.init={source}', **CONVERT)
    exported = tmp_path / 'new' / 'export' / 'hf'
    facts = json.loads((exported / 'config.json').read_text())
    _, info = getattr(transformers, facts['architectures'][0]).from_pretrained(exported, output_loading_info=True)
    assert not any(info.values()), info
