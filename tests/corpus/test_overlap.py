"""Tests that a store or a workdir inside its corpus is refused."""

import pytest
from corpus_text import as_text, documents

from bertjax.corpus.build import build_store
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.errors import UserError
from bertjax.files.paths import match_files


@pytest.mark.parametrize(
    ('spec', 'store', 'refused'),
    [
        ('{}', 'text/out', True),
        ('{}', 'text', True),
        ('{}', 'text/_out', False),  # Names that start with _ or . are not read as text.
        ('{}', 'text2', False),
        ('{}/*.txt', 'text/out', False),
        ('{}/f0.txt', 'text/out', False),
        ('{}/f0.txt,{}', 'text/out/deep', True),
    ],
)
def test_a_store_inside_the_corpus_is_refused(spec, store, refused, tmp_path, vocabulary):
    (tmp_path / 'text').mkdir()
    (tmp_path / 'text' / 'f0.txt').write_bytes(as_text(documents(4)))
    spec = spec.format(tmp_path / 'text', tmp_path / 'text')
    if refused:
        with pytest.raises(UserError, match='outside the output folders'):
            build_store(spec, tmp_path / store, str(vocabulary), progress=False)
        assert not (tmp_path / store / 'manifest.json').exists()
    else:
        build_store(spec, tmp_path / store, str(vocabulary), progress=False)


@pytest.mark.parametrize(
    ('glob', 'workdir', 'found'),
    [
        ('{}/**/*.txt', 'run', 'tokenizer/vocab.txt'),
        ('{}/**', 'deep/run', 'config.json'),
        ('{}/*/*', 'run', 'config.json'),
        ('{}/r?n/[!a]*/**/*.tokens', 'run', 'store/train-00000.tokens'),
        ('{}/*/*/*.json', 'run/store', 'config.json'),
        ('{}/*/*.txt', 'run', ''),  # No file of a workdir at this depth has such a name.
        ('{}/*.txt', '', ''),
        ('{}/**/*.txt', '_run', ''),  # `**` skips folders that start with _.
        ('{}/run/texts/**', 'run', ''),  # Text may be in a separate folder of the workdir.
        ('{}/**/*.txt', '../run', ''),
    ],
)
def test_a_glob_is_checked_against_future_files(glob, workdir, found, tmp_path):
    """The check gives the same result before a run has written its files and after."""
    spec, output = glob.format(tmp_path / 'texts'), tmp_path / 'texts' / workdir
    for _ in range(2):
        if found:
            with pytest.raises(UserError, match='outside the output folders'):
                check_outside(f'pydoc:,{spec}', output, WORKDIR_FILES)
        else:
            check_outside(f'pydoc:,{spec}', output, WORKDIR_FILES)
        path = output / (found or 'tokenizer/vocab.txt')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert bool(found) == (path in match_files(spec)[1])


def test_a_glob_that_will_match_files_of_a_store_is_refused(tmp_path):
    check_outside(f'{tmp_path}/*/*.txt', tmp_path / 'out')  # No file of a store has such a name.
    with pytest.raises(UserError, match='outside the output folders'):
        check_outside(f'{tmp_path}/*/*', tmp_path / 'out')
