"""Tests the parts of an extraction and its output files, without a model."""

import pathlib
import shutil
import types

import numpy as np
import pytest
from killing import kill_at_each

from bertjax import progress
from bertjax.errors import UserError
from bertjax.inference.extraction import Extraction
from bertjax.inference.input import InputSource, make_columns
from bertjax.tasks.reading.records import Row

TEXTS = ['a river', 'stone', '', 'the old light', 'a', 'wind and field', 'house']


class FakeExtractor:
    """An Extractor without a model: each word is a token, and its feature is its length."""

    width, max_length, per_token = 1, 8, True
    runner = types.SimpleNamespace(model=types.SimpleNamespace(tokenizer=types.SimpleNamespace(pieces=['w'])))

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
        return {'lengths': np.int32([*map(len, words)]), 'features': features, **arrays}


@pytest.fixture
def extract(tmp_path: pathlib.Path):
    """extract(folder, model='', suffix='npy') extracts tmp_path/in.txt and returns the number of computed texts.

    A part has three texts.
    """
    (tmp_path / 'in.txt').write_text('\n'.join(TEXTS))

    def run(folder: str, model: str = '', suffix: str = 'npy') -> int:
        extractor, source = FakeExtractor(model), InputSource(str(tmp_path / 'in.txt'), make_columns('text', '', ''))
        extraction = Extraction(extractor, source, tmp_path / folder / f'in.{suffix}', '', 3)
        assert extraction.read() == len(TEXTS)
        if not extraction.is_done():
            extraction.check()
            extraction.compute(lambda rows: None)
            assert list(extraction.write({}))
        return extractor.computed

    return run


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['safetensors', 'jsonl'])
def test_an_extraction_killed_at_any_moment_resumes_to_the_same_bytes(extract, tmp_path, suffix):
    assert extract('complete', suffix=suffix) == len(TEXTS)
    killed, expected, computed = tmp_path / 'killed', files(tmp_path / 'complete'), set()
    for _ in kill_at_each(lambda: extract('killed', suffix=suffix), tmp_path / 'killed'):
        computed.add(extract('killed', suffix=suffix))
        assert files(killed) == expected
        shutil.rmtree(killed)
    assert computed == {0, 1, 4, 7}  # Complete parts are not computed again.


def test_features_are_computed_again_only_if_the_model_or_a_file_changes(extract, tmp_path):
    assert extract('out') == len(TEXTS) and extract('out') == 0
    assert extract('out', model='other') == len(TEXTS)
    (tmp_path / 'out' / 'in.npy').unlink()
    assert extract('out', model='other') == len(TEXTS)


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
        extraction = Extraction(FakeExtractor(), source, tmp_path / 'out' / 'in.npy', '', 2)
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
