"""A run continues on the same text and tokenizer at any path; it refuses others with a fix that works."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from running import RUN, Program

from bertjax.config.recipes import pretraining_config
from bertjax.corpus.store import read_manifest
from bertjax.files.atomic import lock_directory
from bertjax.pretrain.settings import pretraining_settings
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.tokenizer import set_workdir_tokenizer

WORDS = ('light', 'old', 'green', 'under', 'near', 'house', 'wind', 'slow')
CORPUS = (*RUN, '--config.run=corpus')  # makes tokenizer and store as training does


@pytest.fixture
def run(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of a workdir with checkpoints."""
    return shutil.copytree(trained, tmp_path / 'run')


@pytest.fixture
def text(corpus: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the corpus with another path and date."""
    return pathlib.Path(shutil.copyfile(corpus, tmp_path / 'other name.txt'))


def fix_in(error: str) -> str:
    """Returns the flag in the fix that an error prints."""
    return re.search(r'--config\.\w+=\S+?(?=,| to |$)', error)[0]


def test_a_copy_of_the_text_continues(program: Program, run: pathlib.Path, text: pathlib.Path):
    before = (run / 'store' / 'manifest.json').read_bytes()
    for read_again in (True, False):
        out = program.run(f'--workdir={run}', *CORPUS, f'--config.corpus={text}').stdout
        assert ('comparing the content' in out) == read_again and 'training a' not in out
    assert (run / 'store' / 'manifest.json').read_bytes() == before
    assert (run / 'tokenizer' / 'saved.json').exists() and (run / 'store' / 'inputs.json').exists()


@pytest.mark.slow
def test_a_run_continues_on_a_copy_of_its_text(program: Program, run: pathlib.Path, text: pathlib.Path):
    out = program.run(f'--workdir={run}', *RUN, f'--config.corpus={text}').stdout
    assert 'all 24 steps are done' in out


def test_another_text_is_refused_with_a_fix_that_works(program: Program, run: pathlib.Path, text: pathlib.Path):
    text.write_bytes(text.read_bytes().replace(b'river', b'ocean'))
    arguments = (f'--workdir={run}', *CORPUS, f'--config.corpus={text}')
    error = program.error(*arguments)
    assert 'other text (other name.txt has changed)' in error or 'documents.txt has changed' in error
    flag = fix_in(error)
    assert flag == f'--config.data={run}/store'
    program.run(*arguments, flag)
    program.run(f'--workdir={run}', *CORPUS)  # The other fix is the original text.


@pytest.mark.slow
def test_a_run_continues_on_its_store_when_its_text_is_gone(program: Program, run: pathlib.Path):
    out = program.run(f'--workdir={run}', *RUN, '--config.corpus=/nowhere.txt', f'--config.data={run}/store').stdout
    assert 'all 24 steps are done' in out
    out = program.run(f'--workdir={run}', *RUN, '--config.corpus=/nowhere.txt').stdout
    reason = "no such file '/nowhere.txt' in config.corpus: the run continues on the token store in"
    assert f'{reason} {run}/store' in out and 'all 24 steps are done' in out


def test_a_vocabulary_is_trained_again_on_other_text(program: Program, text: pathlib.Path, tmp_path: pathlib.Path):
    """The workdir has no checkpoints yet; the statistics of the new store are printed."""
    arguments = (f'--workdir={tmp_path / "new"}', *CORPUS, f'--config.corpus={text}')
    program.run(*arguments)
    os.utime(text)
    assert 'training a' not in program.run(*arguments).stdout
    assert 'comparing the content' not in program.run(*arguments).stdout
    text.write_bytes(text.read_bytes().replace(b'river', b'xylophone'))
    out = program.run(*arguments).stdout
    assert 'was trained with other text' in out and 'Documents' in out
    assert 'xylophone' in (tmp_path / 'new' / 'tokenizer' / 'vocab.txt').read_text().split()
    manifest = read_manifest(tmp_path / 'new' / 'store')
    assert manifest['report']['unknown_tokens'] == 0


@pytest.mark.parametrize('damage', ['other piece', 'one more'])
def test_a_damaged_vocabulary_gets_no_checksums(
    program: Program, text: pathlib.Path, tmp_path: pathlib.Path, damage: str
):
    """The workdir has no checkpoints yet; the text has the same content but another date."""
    arguments = (f'--workdir={tmp_path / "new"}', *CORPUS, f'--config.corpus={text}')
    program.run(*arguments)
    name, act = DAMAGES[damage]
    act(tmp_path / 'new' / 'tokenizer' / name)
    os.utime(text)
    for _ in range(2):
        assert f'tokenizer/{name}: found ' in program.error(*arguments)


def test_a_vocabulary_is_trained_again_on_another_field(program: Program, tmp_path: pathlib.Path):
    """The files are the same."""
    rows = [
        {'summary': 'the ocean is blue.', 'body': f'the river stone {word} runs. a bird sings over the field.'}
        for word in WORDS
    ]
    text, workdir = tmp_path / 'text.jsonl', tmp_path / 'new'
    text.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    verb = (f'--workdir={workdir}', *CORPUS, f'--config.corpus={text}', '--config.vocab.size=80')
    program.run(*verb, '--config.corpus_options.text_key=summary')
    vocabulary = workdir / 'tokenizer' / 'vocab.txt'
    assert 'river' not in vocabulary.read_text().split()
    out = program.run(*verb, '--config.corpus_options.text_key=body').stdout
    assert 'was trained with another value of config.corpus_options.text_key: it is trained again' in out
    assert 'river' in vocabulary.read_text().split()


@pytest.mark.parametrize(('family', 'again'), [('sentencepiece', True), ('wordpiece', False)])
def test_the_key_of_a_vocabulary_may_include_the_seed(family: str, again: bool):
    """WordPiece is trained on all text, so its vocabulary does not depend on the seed."""

    def key(seed: int) -> str:
        config = pretraining_config(seed=seed)
        config.vocab.family = family
        return pretraining_settings(config).vocabulary_key

    assert (key(0) != key(1)) == again


DAMAGES = {
    'other piece': ('tokenizer.json', lambda path: path.write_text(path.read_text().replace('"river"', '"rover"'))),
    'other list': ('vocab.txt', lambda path: path.write_text(path.read_text().replace('river', 'rover'))),
    'gone': ('vocab.txt', pathlib.Path.unlink),
    'one more': ('tokenizer.model', lambda path: path.write_bytes(b'1')),
    'no checksums': ('saved.json', pathlib.Path.unlink),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_changed_tokenizer_is_refused_and_can_be_rebuilt(program: Program, run: pathlib.Path, damage: str):
    before = (run / 'tokenizer' / 'tokenizer.json').read_bytes()
    name, act = DAMAGES[damage]
    act(run / 'tokenizer' / name)
    error = program.error(f'--workdir={run}', *RUN)
    assert f'tokenizer/{name}: found ' in error and 'remove the folder' in error
    if damage == 'other piece':
        assert name in program.error(f'--workdir={run}', '--config.run=export')
    shutil.rmtree(run / 'tokenizer')  # The fix.
    if damage == 'no checksums':
        error = program.error(f'--workdir={run}', '--config.run=export')
        assert 'tokenizer/saved.json: found no readable checksums' in error and 'repeat the training command' in error
        assert 'remove the folder' not in error
    if damage == 'gone':
        other = run.parent / 'other.txt'
        other.write_text('Some other text, of which no such vocabulary comes.\n' * 20)
        assert 'as the run recorded' in program.error(f'--workdir={run}', *CORPUS, f'--config.corpus={other}')
        assert not (run / 'tokenizer').exists()
    program.run(f'--workdir={run}', *CORPUS)
    assert (run / 'tokenizer' / 'tokenizer.json').read_bytes() == before


def test_unreadable_settings_of_a_vocabulary_count_as_changed(program: Program, run: pathlib.Path):
    (run / 'tokenizer' / 'vocabulary.json').write_bytes(b'vocab.family = \xe9')
    assert 'other settings of config.vocab' in program.error(f'--workdir={run}', *RUN)


def test_a_changed_file_in_config_tokenizer_is_refused_or_replaced(
    program: Program, run: pathlib.Path, tmp_path: pathlib.Path
):
    """With checkpoints, the fix names the workdir's copy. Without checkpoints, the copy is replaced with a warning."""
    source = pathlib.Path(shutil.copyfile(run / 'tokenizer' / 'vocab.txt', tmp_path / 'vocab.txt'))
    arguments = (f'--config.tokenizer={source}', *CORPUS)
    program.run(f'--workdir={run}', *arguments)
    program.run(f'--workdir={tmp_path / "new"}', *arguments)
    source.write_text(source.read_text().replace('river', 'rover'))
    error = program.error(f'--workdir={run}', *arguments)
    flag = fix_in(error)
    assert flag == f'--config.tokenizer={run}/tokenizer'
    program.run(f'--workdir={run}', *arguments, flag)
    out = program.run(f'--workdir={tmp_path / "new"}', *arguments)
    assert f'{source} replaces another tokenizer in' in out.stdout and 'another tokenizer' in out.stderr
    assert 'rover' in (tmp_path / 'new' / 'tokenizer' / 'vocab.txt').read_text()


def test_a_changed_vocabulary_in_the_export_of_config_init_is_refused(
    program: Program, run: pathlib.Path, tmp_path: pathlib.Path
):
    arguments = (f'--workdir={tmp_path / "new"}', f'--config.init={run}', *CORPUS)
    program.run(*arguments)
    DAMAGES['other piece'][1](run / 'export' / 'hf' / 'tokenizer.json')
    assert 'export/hf/tokenizer.json: found other content' in program.error(*arguments)


# Runs in a separate process, because forks of a test process with many compiled programs are slow.
REPLACE = """
import pathlib, shutil, sys
from killing import kill_at_each
from bertjax.text.bert_settings import bert_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer
from bertjax.workdir.tokenizer import set_workdir_tokenizer

former, top = load_tokenizer(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
replacement = WordPieceTokenizer(bert_settings(former.pieces, lowercase=not former.lowercase))
set_workdir_tokenizer(replacement, top / 'whole')
files = {path.name: path.read_bytes() for path in (top / 'whole' / 'tokenizer').iterdir()}
workdir, kills = top / 'run', 0
set_workdir_tokenizer(former, workdir)
for _ in kill_at_each(lambda: set_workdir_tokenizer(replacement, workdir), workdir):
    kills += 1
    set_workdir_tokenizer(replacement, workdir)
    left = {path.name: path.read_bytes() for path in (workdir / 'tokenizer').iterdir() if path.name[0] != '.'}
    assert left == files
    shutil.rmtree(workdir)
    set_workdir_tokenizer(former, workdir)
assert kills > 10
"""


@pytest.mark.slow
def test_a_killed_replacement_of_the_tokenizer_is_continued(
    repository: pathlib.Path, trained: pathlib.Path, tmp_path: pathlib.Path
):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), str(repository)])
    command = [sys.executable, '-c', REPLACE, str(trained / 'tokenizer'), str(tmp_path)]
    result = subprocess.run(command, env=os.environ | {'PYTHONPATH': path}, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def two_separators(trained: pathlib.Path, folder: pathlib.Path) -> Tokenizer:
    """Returns a tokenizer with the same pieces that puts two [SEP] between the texts of a pair."""
    path = shutil.copytree(trained / 'tokenizer', folder) / 'tokenizer.json'
    settings = json.loads(path.read_text())
    pair = settings['post_processor']['pair']
    pair.insert(2, pair[2])
    path.write_text(json.dumps(settings))
    return load_tokenizer(folder)


def test_a_tokenizer_with_other_separators_is_another_tokenizer(
    trained: pathlib.Path, run: pathlib.Path, tmp_path: pathlib.Path
):
    """The fingerprint is the same because it covers only single texts; a run with checkpoints keeps its tokenizer."""
    former, other = load_tokenizer(trained / 'tokenizer'), two_separators(trained, tmp_path / 'two')
    assert (former.separators, other.separators) == (1, 2) and former.fingerprint == other.fingerprint
    set_workdir_tokenizer(former, tmp_path / 'new')
    set_workdir_tokenizer(other, tmp_path / 'new')
    assert load_tokenizer(tmp_path / 'new' / 'tokenizer').separators == 2
    set_workdir_tokenizer(other, run)
    assert load_tokenizer(run / 'tokenizer').separators == 1


def test_a_workdir_inside_the_corpus_is_refused(program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path):
    shutil.copyfile(corpus, tmp_path / 'a.txt')
    for verb in ('pretrain', 'vocab', 'corpus'):
        error = program.error(
            f'--workdir={tmp_path / "out" / "run"}', f'--config.corpus={tmp_path}', f'--config.run={verb}'
        )
        assert 'outside the output folders' in error and 'another --workdir' in error
    assert not (tmp_path / 'out' / 'run' / 'tokenizer').exists()


def test_a_workdir_that_a_glob_would_match_is_refused_at_the_first_start(
    program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path
):
    shutil.copyfile(corpus, tmp_path / 'a.txt')
    for verb in ('pretrain', 'vocab', 'corpus'):
        error = program.error(
            f'--workdir={tmp_path / "run"}', f'--config.corpus={tmp_path}/**/*.txt', f'--config.run={verb}'
        )
        assert 'outside the output folders' in error
    assert not (tmp_path / 'run' / 'tokenizer').exists()


def test_no_vocabulary_is_trained_in_the_workdir_of_another_process(program: Program, tmp_path: pathlib.Path):
    with lock_directory(tmp_path, 'trains in this workdir'):
        assert 'another process' in program.error(f'--workdir={tmp_path}', '--config.run=vocab')
    assert not (tmp_path / 'tokenizer').exists()


def test_the_format_and_statistics_of_a_corpus_are_printed(
    program: Program, corpus: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
):
    monkeypatch.setattr('bertjax.corpus.quality.MANY_SENTENCES', 6)
    folder = tmp_path / 'texts'
    folder.mkdir()
    documents = corpus.read_text().split('\n\n')
    for index in range(3):
        (folder / f'{index}.txt').write_text('\n\n'.join(documents[index * 40 : index * 40 + 40]))
    stores = []
    for name, spec in (('folder', folder), ('glob', f'{folder}/*.txt')):
        result = program.run(f'--workdir={tmp_path / name}', *CORPUS, f'--config.corpus={spec}')
        assert f'{spec}: 3 files, read as documents with blank lines between them' in result.stdout
        assert 'have 6 sentences or more' in ' '.join(result.stdout.split())
        again = program.run(f'--workdir={tmp_path / name}', *CORPUS, f'--config.corpus={spec}').stdout
        assert f'{spec}: 3 files, read as documents' in again and 'Documents' in again
        stores.append(re.search(r'store (\w+): ([\d,]+) documents', result.stdout).groups())
    assert stores[0] == stores[1] and stores[0][1] not in ('3', '1')
