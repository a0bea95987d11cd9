"""Tests the parts of an extraction and its output files, without a model."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
from killing import kill_at_each

from bertjax import progress
from bertjax.config.inference import ExtractKeys
from bertjax.errors import UserError
from bertjax.inference.extraction import Extraction
from bertjax.inference.input import InputSource, make_columns
from bertjax.inference.vector_files import load_vectors
from bertjax.model.quantization import PRECISIONS, quantize, value_ranges
from bertjax.tasks.reading.records import Row

TEXTS = ['a river', 'stone', '', 'the old light', 'a', 'wind and field', 'house']


class FakeExtractor:
    """An Extractor without a model: each word is a token, and its feature is its length."""

    width, per_token = 1, True
    model = types.SimpleNamespace(tokenizer=types.SimpleNamespace(pieces=['w'], family='symbols'))
    unknown = np.array([3, 100, 1, 0])
    runner = types.SimpleNamespace(model=model, max_length=8)

    def __init__(self, name: str = ''):
        self.name, self.computed = name, 0

    def part_key(self, items) -> str:
        return str(abs(hash((self.name, tuple(item.values if isinstance(item, Row) else () for item in items)))))

    def compute_part(self, items, advance):
        words = [item.values[0].split() if isinstance(item, Row) else [] for item in items]
        features = np.float32([[len(word)] for row in words for word in row]).reshape(-1, 1)
        self.computed += len(items)
        zeros = np.zeros(len(features), np.int32)
        arrays = {'ids': zeros, 'segments': zeros, 'starts': zeros, 'ends': zeros}
        lengths = np.int32([*map(len, words)])
        return {'lengths': lengths, 'unknown': self.unknown, 'features': features, **arrays}


class FakePooledExtractor(FakeExtractor):
    """The same with a vector per text: its length minus 4 times 1 to 8."""

    width, per_token = 8, False

    def compute_part(self, items, advance):
        lengths = np.int32([len(item.values[0]) if isinstance(item, Row) else 0 for item in items])
        self.computed += len(items)
        features = np.where(lengths > 0, lengths - 4, np.nan)[:, None] * np.arange(1, 9, dtype=np.float32)
        return {'lengths': lengths, 'unknown': self.unknown, 'features': features.astype(np.float32)}


def extract_in(tmp_path: pathlib.Path):
    """Returns extract(folder, model='', suffix='npy'), which extracts TEXTS and returns the number of computed texts.

    A part has three texts.
    """
    (tmp_path / 'in.txt').write_text('\n'.join(TEXTS))

    def run(folder: str, model: str = '', suffix: str = 'npy', kind: type = FakeExtractor, **storage) -> int:
        extractor, source = kind(model), InputSource(str(tmp_path / 'in.txt'), make_columns('text', '', ''))
        target = tmp_path / folder / f'in.{suffix}'
        extraction = Extraction(extractor, source, target, ExtractKeys(part=3, **storage))
        assert extraction.read() == len(TEXTS)
        if not extraction.is_done():
            extraction.check()
            extraction.compute(lambda rows: None)
            assert list(extraction.write({}))
        return extractor.computed

    return run


@pytest.fixture
def extract(tmp_path: pathlib.Path):
    """The function of `extract_in` with the text tmp_path/in.txt."""
    return extract_in(tmp_path)


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_lines(folder: pathlib.Path) -> None:
    """Kills an extraction to JSON lines at each file operation; the same call then ends with the same bytes."""
    extract = extract_in(folder)
    assert extract('complete', suffix='jsonl') == len(TEXTS)
    killed, expected, computed = folder / 'killed', files(folder / 'complete'), set()
    for _ in kill_at_each(lambda: extract('killed', suffix='jsonl'), killed):
        computed.add(extract('killed', suffix='jsonl'))
        assert files(killed) == expected
        shutil.rmtree(killed)
    assert computed == {0, 1, 4, 7}  # Complete parts are not computed again.


def kill_shards(folder: pathlib.Path) -> None:
    """The same with shards of int8."""
    extract, options = extract_in(folder), {'kind': FakePooledExtractor, 'precision': 'int8', 'shard': 4}
    assert extract('complete', **options) == len(TEXTS)
    killed, expected = folder / 'killed', files(folder / 'complete')
    shards = [f'in-0000{i}-of-00002.npy' for i in range(2)]
    assert sorted(expected) == [*shards, 'in.npy.json', 'in.ranges.npy']
    for _ in kill_at_each(lambda: extract('killed', **options), killed):
        extract('killed', **options)
        assert files(killed) == expected
        shutil.rmtree(killed)


@pytest.mark.slow
def test_an_extraction_killed_at_any_moment_resumes_to_the_same_bytes(repository: pathlib.Path, tmp_path: pathlib.Path):
    """The kills are in a separate process: forks of a test process with many compiled programs are slow."""
    folders = [repository, repository / 'tests' / 'program', pathlib.Path(__file__).parent]
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(map(str, folders))}
    code = 'import pathlib, sys; from test_extraction import *; top = pathlib.Path(sys.argv[1])'
    for kind in ('lines', 'shards'):
        (tmp_path / kind).mkdir()
        code += f"; kill_{kind}(top / '{kind}')"
    command = [sys.executable, '-c', code, str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_shards_are_read_as_one_array(extract, tmp_path):
    extract('one', kind=FakePooledExtractor)
    vectors = np.load(tmp_path / 'one' / 'in.npy')
    assert np.isnan(vectors[2]).all() and np.isfinite(np.delete(vectors, 2, axis=0)).all()
    for precision in PRECISIONS:
        for shard in (0, 1, 2, 3, 5, 100):
            extract('out', kind=FakePooledExtractor, precision=precision, shard=shard)
            found = load_vectors(tmp_path / 'out' / 'in.npy.json')
            ranges = value_ranges(vectors)
            expected = quantize(vectors, precision, ranges)
            assert found.shape == expected.shape and found.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(found), expected)
            for rows in (slice(1, 4), slice(3, 3), slice(5, 99), slice(6, 7), slice(None, None, -2), slice(4, 1, -1)):
                np.testing.assert_array_equal(found[rows], expected[rows])
            for row in (0, -1, np.int64(3)):
                np.testing.assert_array_equal(found[row], expected[row])
            if precision == 'int8':
                np.testing.assert_array_equal(found.ranges, ranges)
    names = {path.name for path in (tmp_path / 'out').iterdir()}
    assert names == {'in-00000-of-00001.npy', 'in.npy.json'}  # The files of other options are removed.
    (tmp_path / 'out' / 'in-00000-of-00001.npy').unlink()
    with pytest.raises(UserError, match=r'in-00000-of-00001\.npy: found .*No such file'):
        load_vectors(tmp_path / 'out' / 'in.npy.json')


def test_damaged_files_of_vectors_are_reported(extract, tmp_path):
    extract('out', kind=FakePooledExtractor, precision='int8')
    np.savez(tmp_path / 'archive.npz', np.zeros((2, 8)))
    (tmp_path / 'empty.npy').touch()
    for name, reason in (('archive.npz', 'the magic string'), ('empty.npy', 'EOF')):
        with pytest.raises(UserError, match=rf'config\.extract\.calibration: found .*{re.escape(name)} \({reason}'):
            extract('other', kind=FakePooledExtractor, precision='int8', calibration=str(tmp_path / name))
    with pytest.raises(UserError, match=r'in\.npy: .*give the path NAME\.npy\.json'):
        load_vectors(tmp_path / 'out' / 'in.npy')
    with pytest.raises(UserError, match=r'^path: found None, expected a path'):
        load_vectors(None)
    for name in ('in.npy', 'in.ranges.npy'):
        path = tmp_path / 'out' / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(UserError, match=re.escape(f'{name} (mmap length is greater')):
            load_vectors(tmp_path / 'out' / 'in.npy.json')
        path.write_bytes(content)


def test_the_calibration_is_that_of_the_file(extract, tmp_path):
    ranges = np.float32([[-1] * 8, [30] * 8])
    np.save(tmp_path / 'ranges.npy', ranges)
    extract('one', kind=FakePooledExtractor)
    extract('out', kind=FakePooledExtractor, precision='int8', calibration=str(tmp_path / 'ranges.npy'))
    expected = quantize(np.load(tmp_path / 'one' / 'in.npy'), 'int8', ranges)
    np.testing.assert_array_equal(np.load(tmp_path / 'out' / 'in.npy'), expected)
    np.save(tmp_path / 'ranges.npy', ranges[:, :7])
    with pytest.raises(UserError, match=r'calibration: found float32 \[2, 7\], expected float32 \[2 or more, 8\]'):
        extract('out', kind=FakePooledExtractor, precision='int8', calibration=str(tmp_path / 'ranges.npy'))


def test_features_are_computed_again_only_if_the_model_or_a_file_changes(extract, tmp_path):
    assert extract('out') == len(TEXTS) and extract('out') == 0
    assert extract('out', model='other') == len(TEXTS)
    (tmp_path / 'out' / 'in.npy').unlink()
    assert extract('out', model='other') == len(TEXTS)


def test_all_parts_of_an_interrupted_run_with_another_model_are_not_removed(extract, monkeypatch):
    extract('out')
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(Extraction, 'write', mock.Mock(side_effect=KeyboardInterrupt))
        extract('out', model='other')
    assert extract('out') == 0  # The features of the first run still exist.
    with pytest.raises(UserError, match=r'/out/in\.parts: found 3 saved parts of .*, or remove this folder$'):
        extract('out', model='third')
    assert extract('out', model='other') == 0 and extract('out') == len(TEXTS)


@pytest.mark.slow
def test_parts_of_other_texts_are_not_reused(extract, tmp_path):
    """After a run was killed, the input changes after the first part."""
    parts = tmp_path / 'out' / 'in.parts'
    for _ in kill_at_each(lambda: extract('out'), tmp_path / 'out'):
        if parts.is_dir() and len([*parts.iterdir()]) == 3:
            break
    (tmp_path / 'in.txt').write_text('\n'.join([*TEXTS[:-1], 'another']))
    assert extract('out') == 1
    assert np.load(tmp_path / 'out' / 'in.npy')[-1] == len('another') and not parts.exists()


def test_an_input_that_changes_during_a_run_is_reported(tmp_path):
    path = tmp_path / 'in.txt'
    for changed in ('a\nc', 'a', 'a\nb\nc\nd'):
        path.write_text('a\nb')
        source = InputSource(str(path), make_columns('text', '', ''))
        extraction = Extraction(FakeExtractor(), source, tmp_path / 'out' / 'in.npy', ExtractKeys(part=2))
        extraction.read()
        path.write_text(changed)
        with pytest.raises(UserError, match='texts that changed during the run'):
            extraction.compute(lambda rows: None)


def test_a_log_gets_progress_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, '_LINE_INTERVAL', 0.0)
    with progress.show_progress('texts', 3000, lines=True) as advance:
        advance(1000)
    assert capsys.readouterr().out.startswith('texts: 1,000 of 3,000 (33%), ')
    with progress.show_progress('texts', None, lines=True) as advance:  # The total is unknown.
        advance(1000)
    assert capsys.readouterr().out.startswith('texts: 1,000, ')
    with progress.show_progress('texts', 3000) as advance:  # Without `lines`.
        advance(1000)
    assert capsys.readouterr() == ('', '')
