"""run=extract: the files in WORKDIR/features, and which inputs and options may replace them."""

import copy
import dataclasses
import json
import shutil
import sys
from unittest import mock

import numpy as np
import pytest
from running import EXTRACT, Program, rows
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.inference import feature_files
from bertjax.inference.encode import Encoding
from bertjax.inference.extraction import Extractor
from bertjax.inference.runner import Runner

TEXTS = ['the river runs', 'stone', 'a bird sings over the house', 'old', 'the wind and the light', 'slow red field']


SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ('parquet', 'safetensors', 'jsonl')]


@pytest.mark.parametrize('format', ['npy', *SLOW])
def test_standard_input_is_saved_in_the_requested_format(program: Program, trained, tmp_path, format):
    """After an interruption, the same texts continue after the last part; other texts do not replace them."""
    source, folder = tmp_path / 'given', tmp_path / 'w' / 'features'
    arguments = (
        f'--workdir={tmp_path / "w"}',
        f'--config.init={trained}',
        '--config.input=-',
        '--config.extract.part=2',
    )
    more = (f'--config.extract.format={format}', '--config.extract.id=n')

    def pipe(*texts: str, status: int = 0) -> str:
        source.write_text(''.join(json.dumps({'n': n, 'text': text}) + '\n' for n, text in enumerate(texts)))
        with source.open() as file, mock.patch.object(sys, 'stdin', file):
            done = program.run(*arguments, *more, status=status, **EXTRACT)
        return done.stdout + done.stderr

    save = feature_files.save_part

    def interrupt(path, part):
        if path.name.startswith('000002'):
            raise RuntimeError('pulled the plug')
        save(path, part)

    with mock.patch.object(feature_files, 'save_part', interrupt), pytest.raises(RuntimeError, match='plug'):
        pipe(*TEXTS[:5])
    assert not (folder / 'stdin.input').exists()
    out = pipe(*TEXTS[:5])
    assert '2 of 3 parts already exist' in out
    assert 'standard input: read as JSON lines' in out and f'using {trained}; ' in out
    assert str(folder / f'stdin.{format}') in out
    if format == 'npy':
        features = np.load(folder / 'stdin.npy')
    elif format == 'safetensors':
        features = load_file(folder / 'stdin.safetensors')['features']
    elif format == 'parquet':
        parquet = pytest.importorskip('pyarrow.parquet', reason="needs the extra 'arrow'")
        table = parquet.read_table(folder / 'stdin.parquet').to_pylist()
        assert [row['id'] for row in table] == ['0', '1', '2', '3', '4']
        features = [row['features'] for row in table]
    else:
        assert [row['id'] for row in rows(folder / 'stdin.jsonl')] == [0, 1, 2, 3, 4]
        features = [row['features'] for row in rows(folder / 'stdin.jsonl')]
    np.testing.assert_allclose(features, bertjax.load(trained).encode(TEXTS[:5]), atol=1e-5)
    ids = {'stdin.ids.jsonl'} if format in ('npy', 'safetensors') else set()
    assert {path.name for path in folder.iterdir()} == {f'stdin.{format}', f'stdin.{format}.json', *ids}
    assert 'already has the features' in pipe(*TEXTS[:5])
    before = (folder / f'stdin.{format}').read_bytes()
    assert 'found results of standard input' in pipe(*TEXTS[1:], status=2)
    assert (folder / f'stdin.{format}').read_bytes() == before and not (folder / 'stdin.input').exists()


def test_features_of_another_input_with_the_same_name_are_not_replaced(extract, program: Program, trained, tmp_path):
    """Files of unknown origin are not replaced either; the same input with other options replaces its features."""
    features = tmp_path / 'features'
    for folder in ('a', 'b'):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 't.txt').write_text(f'the {folder}\n')
    extract(tmp_path / 'a' / 't.txt', '--config.extract.pool=none')
    before = (features / 't.npy').read_bytes()
    other = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={tmp_path / "b" / "t.txt"}')
    for format in ('npy', 'jsonl'):
        line = program.error(*other, f'--config.extract.format={format}', **EXTRACT)
        assert 't.npy.json' in line and f'results of {tmp_path / "a" / "t.txt"}' in line
    assert (features / 't.npy').read_bytes() == before and not (features / 't.parts').exists()
    extract(tmp_path / 'a' / 't.txt', '--config.extract.format=jsonl')
    facts = [json.loads((features / f't.{format}.json').read_text()) for format in ('npy', 'jsonl')]
    assert [fact['pool'] for fact in facts] == ['none', 'mean']
    assert 'already has the features' in extract(tmp_path / 'a' / 't.txt', '--config.extract.pool=none')
    extract(tmp_path / 'a' / 't.txt')
    assert {path.name for path in features.iterdir()} == {'t.npy', 't.npy.json', 't.jsonl', 't.jsonl.json'}
    for path in features.glob('*.json'):
        path.unlink()
    assert 't.npy: found a file of another input or of unknown origin' in program.error(*other, **EXTRACT)


def test_the_identity_of_features_includes_the_pair_separators(trained):
    model = bertjax.load(trained)._model
    other = copy.copy(model.tokenizer)
    other.separators = 2
    models = (model, dataclasses.replace(model, tokenizer=other))
    first, second = (Extractor(Runner(one), Encoding()).identity for one in models)
    assert first != second


def test_loaded_drawn_and_unused_tensors_are_printed(extract, trained, tmp_path):
    folder = shutil.copytree(trained / 'export' / 'hf', tmp_path / 'hf')
    tensors = {name: x for name, x in load_file(folder / 'model.safetensors').items() if not name.startswith('cls.')}
    save_file({**tensors, 'extra.weight': np.zeros(2, np.float32)}, folder / 'model.safetensors')
    (tmp_path / 't.txt').write_text('the river\n')
    first, second, *_ = extract(tmp_path / 't.txt', f'--config.init={folder}').splitlines()
    assert first.startswith(f'using {folder}; {len(tensors)} tensors of its BertForPreTraining loaded')
    assert '; newly initialized: mlm/' in first and second == 'not used: extra.weight'


@pytest.mark.slow
def test_formats_do_not_replace_files_of_other_formats(extract, tmp_path):
    """They keep the shared ids, also after an interrupted run of another format."""
    source, folder = tmp_path / 'b.jsonl', tmp_path / 'features'
    source.write_text(''.join(json.dumps({'n': f'no. {n}', 'text': text}) + '\n' for n, text in enumerate(TEXTS[:3])))
    ids = '--config.extract.id=n'
    extract(source, ids)
    extract(source, ids, '--config.extract.format=safetensors')
    with mock.patch.object(feature_files, 'save_part', side_effect=RuntimeError('plug')), pytest.raises(RuntimeError):
        extract(source, '--config.extract.pool=cls', '--config.extract.part=1')
    extract(source, '--config.extract.format=jsonl')
    extract(source, '--config.extract.pool=cls')  # without ids; safetensors still has them
    names = {'b.npy', 'b.safetensors', 'b.ids.jsonl', 'b.jsonl'}
    assert {path.name for path in folder.iterdir()} - {f'b.{f}.json' for f in ('npy', 'safetensors', 'jsonl')} == names
    assert rows(folder / 'b.ids.jsonl') == ['no. 0', 'no. 1', 'no. 2']
