"""Tests that a store identifies its text by content and refuses changed text."""

import itertools
import json
import logging
import os
import pathlib
import shutil

import pytest
from corpus_text import COMPRESS, as_text, directory_bytes, documents

from bertjax.corpus import identity, reading, shards
from bertjax.corpus.build import build_store
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import manifest_text, open_store, read_manifest
from bertjax.errors import UserError
from bertjax.files.paths import match_files

DOCS = documents(600)


@pytest.fixture
def corpus(tmp_path) -> pathlib.Path:
    """Returns a folder of three files; the last one is compressed."""
    folder = tmp_path / 'text'
    folder.mkdir()
    for index, suffix in enumerate(('', '', '.gz')):
        (folder / f'f{index}.txt{suffix}').write_bytes(COMPRESS[suffix](as_text(DOCS[200 * index : 200 * index + 200])))
    return folder


@pytest.fixture
def build(tmp_path, vocabulary, monkeypatch):
    """build(spec, store='store', **options) -> (mtime of the manifest in ns, log lines about reading files again).

    An existing store of other text or options is an error: it is not replaced.
    """
    identity._digest.cache_clear()

    def call(spec, store='store', **options) -> tuple[int, list[str]]:
        lines = []
        path = tmp_path / store
        build_store(
            spec, path, str(vocabulary), CorpusOptions(**options), progress=False, replace=False, log=lines.append
        )
        return (path / 'manifest.json').stat().st_mtime_ns, [line for line in lines if 'comparing the content' in line]

    return call


def _first_version(store: pathlib.Path, *text: pathlib.Path) -> None:
    """Makes a store look like one that an early version built: without a record, and newer than its text."""
    (store / identity.RECORD).unlink()
    earlier = (store / 'manifest.json').stat().st_mtime - 1  # File systems may round times.
    os.utime(store / 'manifest.json', (earlier, earlier))
    for path in text:
        os.utime(path, (earlier - 1, earlier - 1))


def _touch(folder: pathlib.Path) -> pathlib.Path:
    for path in folder.iterdir():
        os.utime(path)
    return folder


def _copy(folder: pathlib.Path) -> pathlib.Path:
    other = folder.parent / 'backup' / folder.name
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    return other


def _move(folder: pathlib.Path) -> pathlib.Path:
    (folder.parent / 'elsewhere').mkdir()
    return folder.rename(folder.parent / 'elsewhere' / folder.name)


# name: (the change, which returns the new folder; whether the content must be read again)
CHANGES = {
    'touched': (_touch, True),
    'copied': (_copy, True),
    'moved': (_move, False),
    'renamed': (lambda folder: folder.rename(folder.parent / 'other name'), False),
    'renamed and touched': (lambda folder: _touch(folder.rename(folder.parent / 'other name')), True),
}


QUICK = {('{}', 'touched', True), ('{}', 'renamed', True), ('{}/*', 'renamed', False)}
CASES = [
    pytest.param(*case, marks=() if case in QUICK or (case[0] == '{}' and not case[2]) else pytest.mark.slow)
    for case in itertools.product(('{}', '{}/*'), CHANGES, (False, True))
]


@pytest.mark.parametrize(('spec', 'change', 'old'), CASES)
def test_the_same_text_is_recognised_after_a_change_of_path_or_dates(spec, change, old, corpus, build, tmp_path):
    built, _ = build(spec.format(corpus))
    if old:
        _first_version(tmp_path / 'store', *corpus.iterdir())
        built = (tmp_path / 'store' / 'manifest.json').stat().st_mtime_ns
    before = directory_bytes(tmp_path / 'store')
    apply_change, must_read = CHANGES[change]
    folder = apply_change(corpus)
    finished, again = build(spec.format(folder))
    # The old record has no inodes, so a file in a renamed folder may be another file of the same size.
    assert finished == built and bool(again) == (must_read or (old and change == 'renamed' and spec == '{}'))
    after = directory_bytes(tmp_path / 'store')
    assert {**after, identity.RECORD: b''} == {**before, identity.RECORD: b''}
    assert build(spec.format(folder)) == (built, [])  # The next build reads nothing.


def test_a_file_in_several_shards_is_compared(tmp_path, build, monkeypatch):
    monkeypatch.setattr(shards, 'MIN_SHARD', 1 << 12)
    monkeypatch.setattr(shards, 'STRIDE_BYTES', 1 << 10)
    monkeypatch.setattr(shards, 'TARGET_SHARDS', 10)
    folder = tmp_path / 'text'
    folder.mkdir()
    (folder / 'a.txt').write_bytes(as_text(DOCS))
    (folder / 'b.gz').write_bytes(COMPRESS['.gz'](as_text(DOCS)))
    (folder / 'c.gz').write_bytes(COMPRESS['.gz'](as_text(DOCS))[:-20])  # Its hash ends at the damage.
    built, _ = build(str(folder))
    ranges = [len(one.digests) for one in identity.read_record(tmp_path / 'store', _content(tmp_path))['files']]
    assert ranges[0] > 3 and ranges[1:] == [1, 1]
    _touch(folder)
    finished, again = build(str(folder))
    assert finished == built and len(again) == 1
    _first_version(tmp_path / 'store', *folder.iterdir())
    built = (tmp_path / 'store' / 'manifest.json').stat().st_mtime_ns
    _touch(folder)
    assert build(str(folder))[0] == built


def _content(tmp_path) -> str:
    return read_manifest(tmp_path / 'store')['inputs']['content']


@pytest.mark.parametrize('old', [False, True], ids=['', 'of the first version'])
def test_other_text_is_refused_by_name(old, corpus, build, tmp_path, caplog, vocabulary):
    build(str(corpus))
    if old:
        _first_version(tmp_path / 'store', *corpus.iterdir())
    path = corpus / 'f1.txt'
    data = path.read_bytes()
    path.write_bytes(data.replace(b'river', b'water'))  # The size stays the same.
    with pytest.raises(UserError, match=r'other text .*has changed') as caught:
        build(str(corpus))
    assert old or 'text/f1.txt' in caught.value.found
    path.write_bytes(data[:-1])
    with pytest.raises(UserError, match='other text'):
        build(str(corpus))
    path.write_bytes(data)
    (corpus / 'f3.txt').write_bytes(data)
    with pytest.raises(UserError, match='other text'):
        build(str(corpus))
    (corpus / 'f3.txt').unlink()
    build(str(corpus))  # The text is the first one again.
    with caplog.at_level(logging.WARNING):
        path.write_bytes(data.replace(b'river', b'water'))
        build_store(str(corpus), tmp_path / 'store', str(vocabulary), progress=False)
    assert 'other text' in caplog.text and 'Building it again' in caplog.text


@pytest.fixture
def half_build(build, monkeypatch, tmp_path):
    """half_build(spec) stops a build before the merge; returns a list to which later builds append each shard's files.

    A shard is a list of the names of its parts.
    """
    from bertjax.corpus import build as builder
    from bertjax.corpus import workers

    monkeypatch.setattr(shards, 'MIN_SHARD', 1 << 12)
    monkeypatch.setattr(shards, 'TARGET_SHARDS', 10)
    read, encode = [], workers.encode_shard

    def record_and_encode(directory, shard, parts, *rest):
        read.append([part.name for part in parts])
        return encode(directory, shard, parts, *rest)

    monkeypatch.setattr(workers, 'encode_shard', record_and_encode)

    def call(spec) -> list[list[str]]:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(builder, '_merge', lambda *arguments: 1 / 0)
            build(spec, workers=1)
        read.clear()
        return read

    return call


@pytest.mark.parametrize(
    'change',
    [
        'renamed and touched',
        *(pytest.param(change, marks=pytest.mark.slow) for change in CHANGES if change != 'renamed and touched'),
    ],
)
def test_a_half_built_store_of_the_same_text_is_continued(change, corpus, build, half_build, tmp_path):
    build(str(corpus), store='whole', workers=1)
    read = half_build(str(corpus))
    folder = CHANGES[change][0](corpus)
    build(str(folder), workers=1)
    assert read == []
    whole, after = (directory_bytes(tmp_path / name) for name in ('whole', 'store'))
    assert {**whole, identity.RECORD: b''} == {**after, identity.RECORD: b''}
    assert build(str(folder))[1] == []


def test_changed_files_of_a_half_built_store_are_read_again(corpus, build, half_build, tmp_path):
    read = half_build(str(corpus))
    path = corpus / 'f1.txt'
    path.write_bytes(path.read_bytes().replace(b'river', b'water'))
    build(str(corpus), workers=1)
    assert read and {name for names in read for name in names} == {'text/f1.txt'}
    after = directory_bytes(tmp_path / 'store')
    build(str(corpus), store='whole', workers=1)
    assert after == directory_bytes(tmp_path / 'whole')


def test_a_store_of_an_early_version_with_one_document_per_file_is_unchanged(corpus, build, tmp_path, monkeypatch):
    """Early versions read every file of a folder as one document."""
    with monkeypatch.context() as patch:
        patch.setattr(reading, 'choose_readings', lambda found: (found, []))
        build(str(corpus), store='finished')
    assert build(str(corpus), store='finished', workers=1)[1] == []
    _first_version(tmp_path / 'finished', *corpus.iterdir())
    _touch(corpus)
    assert build(str(corpus), store='finished', workers=1)[1]
    assert read_manifest(tmp_path / 'finished')['report']['documents'] == 3
    build(str(corpus), store='new')
    assert read_manifest(tmp_path / 'new')['report']['documents'] == 600


def test_a_store_with_truncated_names_of_a_relative_glob_is_finished(corpus, build, tmp_path, monkeypatch):
    """Early versions stored such names without their first letter."""
    monkeypatch.chdir(corpus)
    _, again = build('*.txt')
    manifest = read_manifest(tmp_path / 'store')
    assert manifest['inputs']['first'] == ['f0.txt', 'f1.txt'] and not again
    sources = [source for source in reading.choose_readings(_resolve('*.txt'))[0]]
    old = [source.old_name for source in sources]
    assert old == ['0.txt', '1.txt']
    inputs = {**manifest['inputs'], 'first': old, 'names': identity.hash_names(sources, old)}
    rest = {key: value for key, value in manifest.items() if key != 'checksum'}
    (tmp_path / 'store' / 'manifest.json').write_text(manifest_text({**rest, 'inputs': inputs}))
    (tmp_path / 'store' / identity.RECORD).unlink()
    built = (tmp_path / 'store' / 'manifest.json').stat().st_mtime_ns
    assert build('*.txt') == (built, [])
    for name in ('./*.txt', '../text/*.txt'):
        assert [source.name for source in _resolve(name)] == ['f0.txt', 'f1.txt']


def _resolve(spec):
    from bertjax.corpus.sources import resolve_sources

    return resolve_sources(spec)


def test_a_damaged_record_is_ignored(corpus, build, tmp_path):
    built, _ = build(str(corpus))
    path = tmp_path / 'store' / identity.RECORD
    record = json.loads(path.read_text())
    without = [json.dumps({name: value for name, value in record.items() if name != key}) for key in record]
    for damage in ('', '[]', '{"content": 1}', '[' * 100_000, *without):
        path.write_text(damage)
        assert identity.read_readings(open_store(tmp_path / 'store')) == []
        assert build(str(corpus)) == (built, [])
    assert len(json.loads(path.read_text())['files']) == 3
    path.write_text(json.dumps(record))
    assert identity.read_readings(open_store(tmp_path / 'store')) == record['readings'] != []


@pytest.mark.parametrize(('name', 'removed_key', 'num_shards'), [('plan.json', 'units', 2), ('00001.json', 'files', 1)])
def test_damaged_partial_work_is_repeated(name, removed_key, num_shards, build, half_build, tmp_path):
    for part in (0, 1):
        (tmp_path / f'{part}.txt').write_bytes(as_text(DOCS[40 * part : 40 * part + 40]))
    build(f'{tmp_path}/*.txt', store='whole', workers=1)
    read, path = half_build(f'{tmp_path}/*.txt'), tmp_path / 'store' / 'partial' / name
    shutil.copytree(tmp_path / 'store', tmp_path / 'start')
    facts = json.loads(path.read_text())
    for damage in ('[' * 100_000, json.dumps({key: facts[key] for key in facts if key != removed_key})):
        shutil.rmtree(tmp_path / 'store')
        shutil.copytree(tmp_path / 'start', tmp_path / 'store')
        path.write_text(damage)
        read.clear()
        build(f'{tmp_path}/*.txt', workers=1)
        assert len(read) == num_shards and directory_bytes(tmp_path / 'store') == directory_bytes(tmp_path / 'whole')


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    from bertjax.corpus.sources import TextPart

    part = TextPart('file', 'a', 'a', 0, 9)
    with pytest.raises(UserError, match='content that changed'):
        identity.collect_digests([(part, 'x'), (part, 'y')])


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
def test_a_store_inside_the_corpus_is_refused(spec, store, refused, corpus, build, tmp_path):
    if refused:
        with pytest.raises(UserError, match='outside the output folders'):
            build(spec.replace('{}', str(corpus)), store)
        assert not (tmp_path / store / 'manifest.json').exists()
    else:
        build(spec.replace('{}', str(corpus)), store)


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


def test_a_glob_that_will_match_files_of_a_store_is_refused(corpus, build):
    (corpus / 'more').mkdir()
    (corpus / 'f0.txt').rename(corpus / 'more' / 'f0.txt')
    build(f'{corpus}/*/*.txt', 'text/out')  # No file of a store has such a name.
    with pytest.raises(UserError, match='outside the output folders'):
        build(f'{corpus}/*/*', 'text/new')
