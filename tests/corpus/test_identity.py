"""Tests that a store identifies its text by content and refuses changed text."""

import json
import logging
import os
import pathlib
import shutil

import pytest
from corpus_text import COMPRESS, as_text, directory_bytes, documents

from bertjax.corpus import identity, shards
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, TextPart, resolve_sources
from bertjax.corpus.store import open_store, read_manifest
from bertjax.errors import UserError

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
    identity.digest_range.cache_clear()

    def call(spec, store='store', **options) -> tuple[int, list[str]]:
        lines = []
        path = tmp_path / store
        build_store(
            spec, path, str(vocabulary), CorpusOptions(**options), progress=False, replace=False, log=lines.append
        )
        return (path / 'manifest.json').stat().st_mtime_ns, [line for line in lines if 'comparing the content' in line]

    return call


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


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('spec', ['{}', '{}/*'])
def test_the_same_text_is_recognized_after_a_change_of_path_or_dates(spec, change, corpus, build, tmp_path):
    built, _ = build(spec.format(corpus))
    before = directory_bytes(tmp_path / 'store')
    apply_change, must_read = CHANGES[change]
    folder = apply_change(corpus)
    finished, again = build(spec.format(folder))
    assert finished == built and bool(again) == must_read
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


def _content(tmp_path) -> str:
    return read_manifest(tmp_path / 'store')['inputs']['content']


def test_other_text_is_refused_by_name(corpus, build, tmp_path, caplog, vocabulary):
    build(str(corpus))
    path = corpus / 'f1.txt'
    data = path.read_bytes()
    path.write_bytes(data.replace(b'river', b'water'))  # The size stays the same.
    with pytest.raises(UserError, match=r'other text .*has changed') as caught:
        build(str(corpus))
    assert 'text/f1.txt' in caught.value.found
    path.write_bytes(data[:-1])
    with pytest.raises(UserError, match=r'other text .*f1\.txt has changed: [\d,]+ bytes in place of [\d,]+\)'):
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
    """half_build(spec, **options) stops before the merge; returns a list to which later builds append a shard's files.

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

    def call(spec, **options) -> list[list[str]]:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(builder.merge, 'heldout_threshold', lambda *arguments: 1 / 0)
            build(spec, workers=1, **options)
        read.clear()
        return read

    return call


@pytest.mark.parametrize('change', ['touched', 'copied', 'moved'])
def test_a_half_built_store_of_the_same_text_is_continued(change, corpus, build, half_build, tmp_path):
    build(str(corpus), store='whole', workers=1)
    read = half_build(str(corpus))
    folder = CHANGES[change][0](corpus)
    build(str(folder), workers=1)
    assert read == []
    whole, after = (directory_bytes(tmp_path / name) for name in ('whole', 'store'))
    assert {**whole, identity.RECORD: b''} == {**after, identity.RECORD: b''}
    assert build(str(folder))[1] == []


@pytest.mark.parametrize(('before', 'after'), [(True, False), (False, True)])
def test_only_a_strict_half_built_store_is_continued_with_the_other_value(before, after, corpus, build, half_build):
    read = half_build(str(corpus), strict=before)
    build(str(corpus), workers=1, strict=after)
    assert (read == []) == before


def test_changed_files_of_a_half_built_store_are_read_again(corpus, build, half_build, tmp_path):
    read = half_build(str(corpus))
    path = corpus / 'f1.txt'
    path.write_bytes(path.read_bytes().replace(b'river', b'water'))
    build(str(corpus), workers=1)
    assert read and {name for names in read for name in names} == {'text/f1.txt'}
    after = directory_bytes(tmp_path / 'store')
    build(str(corpus), store='whole', workers=1)
    assert after == directory_bytes(tmp_path / 'whole')


def test_the_files_of_a_glob_are_named_from_its_fixed_part(corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    for name in ('*.txt', './*.txt', '../text/*.txt'):
        assert [source.name for source in resolve_sources(name)] == ['f0.txt', 'f1.txt']


def test_a_store_with_a_damaged_record_is_refused_or_built_again(corpus, build, tmp_path, vocabulary):
    build(str(corpus))
    path = tmp_path / 'store' / identity.RECORD
    record = json.loads(path.read_text())
    without = [json.dumps({name: value for name, value in record.items() if name != key}) for key in record]
    for damage in ('', '[]', '{"content": 1}', '[' * 100_000, *without):
        path.write_text(damage)
        assert identity.read_readings(open_store(tmp_path / 'store')) == []
        with pytest.raises(UserError, match=r'inputs\.json is missing or damaged'):
            build(str(corpus))
    before = directory_bytes(tmp_path / 'store')
    build_store(str(corpus), tmp_path / 'store', str(vocabulary), progress=False)
    assert {**directory_bytes(tmp_path / 'store'), identity.RECORD: b''} == {**before, identity.RECORD: b''}
    assert json.loads(path.read_text()) == record
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
    part = TextPart('file', 'a', 'a', 0, 9)
    with pytest.raises(UserError, match='content that changed'):
        identity.collect_digests([(part, 'x'), (part, 'y')])
