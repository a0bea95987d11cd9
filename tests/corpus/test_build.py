"""Tests that a build gives the same bytes with any number of workers and after any interruption."""

import logging
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest
from corpus_text import COMPRESS, as_text, directory_bytes, documents, ids_of, stored
from marks import slow

from bertjax.corpus import formats, shards, workers
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.store import open_store
from bertjax.errors import StoppedError, UserError

DOCS = documents(4000)


@pytest.fixture
def small_shards(monkeypatch):
    """Limits shards to a few kilobytes, so that a little text has many."""
    monkeypatch.setattr(shards, 'MIN_SHARD', 1 << 14)
    monkeypatch.setattr(shards, 'STRIDE_BYTES', 1 << 12)
    monkeypatch.setattr(shards, 'TARGET_SHARDS', 10)


@pytest.fixture
def corpus(tmp_path) -> str:
    """Returns the spec of a corpus with a large plain file, a large compressed file, and small files."""
    folder = tmp_path / 'corpus'
    folder.mkdir()
    (folder / 'a.txt').write_bytes(as_text(DOCS[:1500]))
    (folder / 'b.txt.gz').write_bytes(COMPRESS['.gz'](as_text(DOCS[1500:3900])))
    for index in range(3900, 4000):
        (folder / f'{index}.txt').write_bytes(as_text(DOCS[index : index + 1]))
    return f'{folder}/*.txt,{folder}/*.gz'


def test_the_number_of_workers_changes_no_byte(corpus, small_shards, tmp_path, vocabulary, tokenizer):
    for number in (1, 2):
        options = CorpusOptions(workers=number, heldout=0.1)
        build_store(corpus, tmp_path / f'store{number}', str(vocabulary), options, progress=False)
    assert directory_bytes(tmp_path / 'store1') == directory_bytes(tmp_path / 'store2')
    cut = shards.cut_shards(resolve_sources(corpus), 'auto')
    kinds = {(part.of > 1, part.begin > 0) for parts in cut for part in parts}
    assert len(cut) > 8 and kinds == {(False, False), (True, False), (False, True)}
    assert stored(open_store(tmp_path / 'store1')) == sorted(ids_of(DOCS, tokenizer))


def test_a_large_file_is_cut_at_blank_lines_of_any_white_space(small_shards, tmp_path, vocabulary, tokenizer):
    blank = '\n' + '\u3000\u2003' * 20 + '\x1f\x85\r\n'
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:1500]).replace(b'\n\n', blank.encode()))
    assert len(shards.cut_shards(resolve_sources(f'{tmp_path}/a.txt'), 'auto')) > 8
    build_store(f'{tmp_path}/a.txt', tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS[:1500], tokenizer))


def test_an_error_of_a_worker_ends_the_build(small_shards, tmp_path, vocabulary, monkeypatch):
    for name, end in (('a', b''), ('b', b'\n\n\xff broken\n')):  # One shard each.
        (tmp_path / f'{name}.txt').write_bytes(as_text(DOCS[:200]) + end)
    assert len(shards.cut_shards(resolve_sources(f'{tmp_path}/?.txt'), 'auto')) == 2
    options = CorpusOptions(workers=2, strict=True)
    with pytest.raises(UserError, match='invalid UTF-8'):
        build_store(f'{tmp_path}/?.txt', tmp_path / 'store', str(vocabulary), options, progress=False)
    monkeypatch.setattr(workers, '_start_worker', os._exit)  # fails because of its arguments
    with pytest.raises(StoppedError, match='a worker process died; memory may be too small'):
        build_store(f'{tmp_path}/?.txt', tmp_path / 'other', str(vocabulary), options, progress=False)


def test_the_other_workers_stop_after_an_error(tmp_path, monkeypatch):
    counters = multiprocessing.get_context('spawn').Array('q', [0, 1])
    monkeypatch.setattr(workers, '_worker', (tmp_path, None, CorpusOptions(), counters))
    monkeypatch.setattr(workers, 'encode_shard', lambda *arguments: arguments[-1](1))
    with pytest.raises(workers._Stopped):
        workers._encode(0, [])


@pytest.mark.parametrize('layout', ['jsonl', 'wikiextractor', *slow('text')])
def test_a_cut_file_has_every_document_once(layout, small_shards, tmp_path, vocabulary, tokenizer):
    import json

    docs = DOCS[:2000]
    content = {
        'text': as_text(docs, '\r\n'),
        'jsonl': ''.join(json.dumps({'text': '\n'.join(doc)}) + '\n' for doc in docs).encode(),
        'wikiextractor': ''.join(f'<doc id="1">\nT\n\n{chr(10).join(doc)}\n</doc>\n' for doc in docs).encode(),
    }[layout]
    lines = content.split(b'\n')
    at = len(lines) // 2
    while layout != 'jsonl' and not lines[at - 1].rstrip().endswith(b'.'):
        at += 1
    lines.insert(at, b'\xff')  # Its line number must be right, although other shards contain the earlier lines.
    path = tmp_path / 'a'
    path.write_bytes(b'\n'.join(lines))
    assert len(shards.cut_shards(resolve_sources(str(path)), 'auto')) > 5
    report = build_store(str(path), tmp_path / 'store', str(vocabulary), progress=False)
    (problem,) = report['problems']['invalid UTF-8']
    assert problem.startswith(f'a:{at + 1}: ')
    kept = stored(open_store(tmp_path / 'store'))
    expected = ids_of(docs, tokenizer)
    assert len(kept) == len(docs) - (layout != 'jsonl')  # The broken line of a jsonl file is a document.
    assert all(doc in expected for doc in kept[::50])
    assert report['dropped'] == {'invalid UTF-8': 1}


def test_the_lines_before_a_part_are_counted_once(small_shards, tmp_path, vocabulary, monkeypatch):
    lines = [b'{"text": "The mill."}', b'{'] * 3000
    (tmp_path / 'a.jsonl').write_bytes(b'\n'.join(lines))
    parts = len(shards.cut_shards(resolve_sources(str(tmp_path / 'a.jsonl')), 'auto'))
    counted, count = [], formats._count_lines_before
    monkeypatch.setattr(formats, '_count_lines_before', lambda part: counted.append(part.begin) or count(part))
    report = build_store(str(tmp_path / 'a.jsonl'), tmp_path / 'store', str(vocabulary), progress=False)
    assert report['dropped'] == {'wrong JSON': 3000} and len(counted) == parts - 1 > 1


def test_a_huge_document_is_spilled_to_disk(monkeypatch, tmp_path, vocabulary, tokenizer):
    monkeypatch.setattr('bertjax.corpus.shard_writer.BATCH_CHARACTERS', 200)
    docs = [[sentence for doc in DOCS[index : index + 50] for sentence in doc] for index in range(0, 1000, 50)]
    text = as_text(docs) + b'\n' + as_text([docs[0]]).strip() + b'\nThe \xff mill.\n\n' + as_text([['The last town.']])
    (tmp_path / 'a.txt').write_bytes(text)
    options = CorpusOptions(heldout=0.4)
    report = build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), options, progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of([*docs, ['The last town.']], tokenizer))
    assert report['dropped'] == {'invalid UTF-8': 1} and report['heldout_documents'] > 2


_PROGRAM = """
import sys
from bertjax.corpus import shards, workers
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
if __name__ == '__main__':
    shards.MIN_SHARD, shards.STRIDE_BYTES, shards.TARGET_SHARDS = 1 << 14, 1 << 12, 10
    spec, store, vocabulary, workers = sys.argv[1:]
    build_store(spec, store, vocabulary, CorpusOptions(workers=int(workers)), progress=False)
    assert not {'jax', 'tensorflow', 'torch'} & set(sys.modules)
"""


@pytest.mark.parametrize('workers', [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_build_continues_to_the_same_bytes(workers, corpus, tmp_path, vocabulary):
    program = tmp_path / 'program.py'
    program.write_text(_PROGRAM)
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(shards.__file__).parents[2])}

    def start(store):
        command = [sys.executable, str(program), corpus, str(tmp_path / store), str(vocabulary), str(workers)]
        return subprocess.Popen(command, env=environment)

    assert start('whole').wait(60) == 0
    killed = 0
    for num_records in (1, 5):
        process = start('killed')
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if len(list((tmp_path / 'killed' / 'partial').glob('[0-9]*.json'))) >= num_records:
                children = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGKILL)
                killed += process.wait() == -signal.SIGKILL
                assert not psutil.wait_procs(children, timeout=20)[1]  # Workers do not outlive their parent.
                break
            time.sleep(0.002)
    assert killed
    (tmp_path / 'killed' / 'partial' / '.00001.lines.tmp-1').write_bytes(b'left over')
    assert start('killed').wait(60) == 0
    assert directory_bytes(tmp_path / 'killed') == directory_bytes(tmp_path / 'whole')


@pytest.mark.slow
def test_workers_do_not_import_the_script_that_starts_them(corpus, small_shards, tmp_path, vocabulary):
    """An import would start the build again, and would import modules that workers do not need."""
    program = tmp_path / 'program.py'
    program.write_text("print('started')\n" + _PROGRAM.replace("if __name__ == '__main__':", 'for _ in range(1):'))
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(shards.__file__).parents[2])}
    command = [sys.executable, str(program), corpus, str(tmp_path / 'store'), str(vocabulary), '2']
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, 'started\n'), ended.stderr
    build_store(corpus, tmp_path / 'other', str(vocabulary), CorpusOptions(workers=1), progress=False)
    assert directory_bytes(tmp_path / 'store') == directory_bytes(tmp_path / 'other')


def test_an_interrupted_merge_continues(corpus, small_shards, tmp_path, vocabulary, monkeypatch):
    from bertjax.corpus import build

    options = CorpusOptions(heldout=0.001, workers=1)  # At this share, the merge moves documents between files.
    build_store(corpus, tmp_path / 'whole', str(vocabulary), options, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(build.report, 'coherence', lambda split: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(corpus, tmp_path / 'cut', str(vocabulary), options, progress=False)
    with pytest.raises(UserError, match='unfinished'):
        open_store(tmp_path / 'cut')
    build_store(corpus, tmp_path / 'cut', str(vocabulary), options, progress=False)
    assert directory_bytes(tmp_path / 'cut') == directory_bytes(tmp_path / 'whole')


def _build_without_merge(corpus, store, vocabulary, monkeypatch):
    from bertjax.corpus import build

    with monkeypatch.context() as patch:
        patch.setattr(build.merge, 'heldout_threshold', lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(corpus, store, str(vocabulary), CorpusOptions(workers=1), progress=False)


@pytest.mark.slow
def test_partial_work_is_continued_or_discarded(corpus, small_shards, tmp_path, vocabulary, monkeypatch, caplog):

    store = tmp_path / 'store'
    _build_without_merge(corpus, store, vocabulary, monkeypatch)
    read = []
    real = workers.encode_shard
    monkeypatch.setattr(workers, 'encode_shard', lambda *arguments: read.append(arguments[1]) or real(*arguments))
    (store / 'partial' / '00002.sentences').write_bytes(b'cut')
    build_store(corpus, store, str(vocabulary), CorpusOptions(workers=1), progress=False)
    assert read == [2]  # The other shards were complete.
    build_store(corpus, store, str(vocabulary), CorpusOptions(workers=2), progress=False)
    assert read == [2]  # The store is finished, whatever the number of workers.

    other = tmp_path / 'other'
    for change in ('options', 'rules', 'text'):
        _build_without_merge(corpus, other, vocabulary, monkeypatch)
        read.clear()
        caplog.clear()
        options = CorpusOptions(workers=1, heldout=0.3 if change == 'options' else 0.02)
        if change == 'rules':
            monkeypatch.setattr('bertjax.corpus.build_dir.RULES_VERSION', 0)
        if change == 'text':
            with open(tmp_path / 'corpus' / 'a.txt', 'ab') as file:
                file.write(b'\n\nThe mill.\n')
        with caplog.at_level(logging.INFO):
            report = build_store(corpus, other, str(vocabulary), options, progress=False)
        assert 0 in read and len(read) > 8
        assert 'Removing the unfinished build' in caplog.text
        assert report['documents'] == len(DOCS) + (change == 'text')
        for name in directory_bytes(other):
            (other / name).unlink()
