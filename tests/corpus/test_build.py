"""A build gives the same bytes with any number of workers, after a kill and in any directory; what it throws away."""

import fcntl
import io
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from corpus_text import COMPRESS, as_text, directory_bytes, documents, ids_of, stored

from bertjax.corpus import shards
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, parse_mixture, resolve
from bertjax.corpus.store import open_store
from bertjax.corpus.workers import Progress
from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.text.tokenizer import load_tokenizer

DOCS = documents(4000)


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a few kilobytes, so that little text makes many."""
    monkeypatch.setattr(shards, 'MIN_SHARD', 1 << 14)
    monkeypatch.setattr(shards, 'STRIDE_BYTES', 1 << 12)
    monkeypatch.setattr(shards, 'SHARDS_WANTED', 10)


@pytest.fixture
def corpus(tmp_path) -> str:
    """One large plain file, one large compressed one, and small ones."""
    place = tmp_path / 'corpus'
    place.mkdir()
    (place / 'a.txt').write_bytes(as_text(DOCS[:1500]))
    (place / 'b.txt.gz').write_bytes(COMPRESS['.gz'](as_text(DOCS[1500:3900])))
    for index in range(3900, 4000):
        (place / f'{index}.txt').write_bytes(as_text(DOCS[index : index + 1]))
    return f'{place}/*.txt,{place}/*.gz'


def test_workers_change_no_byte(corpus, small_shards, tmp_path, vocabulary, tokenizer):
    for workers in (1, 2):
        options = CorpusOptions(workers=workers, heldout=0.1)
        build_store(corpus, tmp_path / f'store{workers}', str(vocabulary), options, progress=False)
    assert directory_bytes(tmp_path / 'store1') == directory_bytes(tmp_path / 'store2')
    cut = shards.cut_shards(resolve(corpus), 'auto')
    kinds = {(part.of > 1, part.begin > 0) for parts in cut for part in parts}
    assert len(cut) > 8 and kinds == {(False, False), (True, False), (False, True)}
    assert stored(open_store(tmp_path / 'store1')) == sorted(ids_of(DOCS, tokenizer))


@pytest.mark.parametrize('layout', ['text', 'jsonl', 'wikiextractor'])
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
    lines.insert(at, b'\xff')  # Its line number must be right although another shard reads the lines before it.
    path = tmp_path / 'a'
    path.write_bytes(b'\n'.join(lines))
    assert len(shards.cut_shards(resolve(str(path)), 'auto')) > 5
    report = build_store(str(path), tmp_path / 'store', str(vocabulary), progress=False)
    (problem,) = report['problems']['invalid UTF-8']
    assert problem.startswith(f'a:{at + 1}: ')
    kept = stored(open_store(tmp_path / 'store'))
    expected = ids_of(docs, tokenizer)
    assert len(kept) == len(docs) - (layout != 'jsonl')  # There the broken line is a document of its own.
    assert all(doc in expected for doc in kept[::50])
    assert report['dropped'] == {'invalid UTF-8': 1}


def test_the_lines_before_a_part_are_counted_once(small_shards, tmp_path, vocabulary, monkeypatch):
    lines = [b'{"text": "The mill."}', b'{'] * 3000
    (tmp_path / 'a.jsonl').write_bytes(b'\n'.join(lines))
    parts, counted, count = len(shards.cut_shards(resolve(str(tmp_path / 'a.jsonl')), 'auto')), [], streams.count_lines
    monkeypatch.setattr(streams, 'count_lines', lambda path, end: counted.append(end) or count(path, end))
    report = build_store(str(tmp_path / 'a.jsonl'), tmp_path / 'store', str(vocabulary), progress=False)
    assert report['dropped'] == {'wrong JSON': 3000} and len(counted) == parts - 1 > 1


def test_a_huge_document_is_spilled(monkeypatch, tmp_path, vocabulary, tokenizer):
    monkeypatch.setattr('bertjax.corpus.encode.BATCH_CHARACTERS', 200)
    docs = [[sentence for doc in DOCS[index : index + 50] for sentence in doc] for index in range(0, 1000, 50)]
    text = as_text(docs) + b'\n' + as_text([docs[0]]).strip() + b'\nThe \xff mill.\n\n' + as_text([['The last town.']])
    (tmp_path / 'a.txt').write_bytes(text)
    options = CorpusOptions(heldout=0.4)
    report = build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), options, progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of([*docs, ['The last town.']], tokenizer))
    assert report['dropped'] == {'invalid UTF-8': 1} and report['heldout_documents'] > 2


_PROGRAM = """
import sys
from bertjax.corpus import shards
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
if __name__ == '__main__':
    shards.MIN_SHARD, shards.STRIDE_BYTES, shards.SHARDS_WANTED = 1 << 14, 1 << 12, 10
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
    for wanted in (1, 3, 6):
        process = start('killed')
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if len(list((tmp_path / 'killed' / 'partial').glob('[0-9]*.json'))) >= wanted:
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


def test_a_script_that_workers_cannot_import_is_told_so(corpus, tmp_path, vocabulary):
    """At once, and by its line: each worker would begin with the build that has started it."""
    program = tmp_path / 'program.py'
    program.write_text(_PROGRAM.replace("if __name__ == '__main__':", 'for _ in range(1):'))
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(shards.__file__).parents[2])}
    command = [sys.executable, str(program), corpus, str(tmp_path / 'store'), str(vocabulary), '2']
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.count('Traceback') == 1
    last = ended.stderr.splitlines()[-1]
    assert f"{program}:9: found 2 worker processes started outside of `if __name__ == '__main__':`" in last


def test_files_that_vanish_while_they_are_removed(tmp_path, vocabulary, monkeypatch):
    """The workers of a killed build live some milliseconds longer, and end what they were writing."""
    found = pathlib.Path.glob

    def glob(path, pattern):
        return [
            *found(path, pattern),
            *([path / 'gone'] if pattern in ('.*.tmp-*', 'train-*.tokens', '*.tokens') else []),
        ]

    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    monkeypatch.setattr(pathlib.Path, 'glob', glob)
    assert build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)['documents'] == 5


def test_a_merge_that_is_cut_short_continues(corpus, small_shards, tmp_path, vocabulary, monkeypatch):
    from bertjax.corpus import build

    options = CorpusOptions(heldout=0.001, workers=1)  # So small a share that the merge moves documents between files.
    build_store(corpus, tmp_path / 'whole', str(vocabulary), options, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(build.merge, 'count_distinct_lines', lambda shards: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(corpus, tmp_path / 'cut', str(vocabulary), options, progress=False)
    with pytest.raises(UserError, match='unfinished'):
        open_store(tmp_path / 'cut')
    build_store(corpus, tmp_path / 'cut', str(vocabulary), options, progress=False)
    assert directory_bytes(tmp_path / 'cut') == directory_bytes(tmp_path / 'whole')


def _half_built(corpus, store, vocabulary, monkeypatch):
    """Stops a build before its merge."""
    from bertjax.corpus import build

    with monkeypatch.context() as patch:
        patch.setattr(build, '_merge', lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(corpus, store, str(vocabulary), CorpusOptions(workers=1), progress=False)


def test_partial_work_is_continued_or_discarded(corpus, small_shards, tmp_path, vocabulary, monkeypatch, caplog):
    from bertjax.corpus import workers

    store = tmp_path / 'store'
    _half_built(corpus, store, vocabulary, monkeypatch)
    read = []
    real = workers.encode_shard
    monkeypatch.setattr(workers, 'encode_shard', lambda *arguments: read.append(arguments[1]) or real(*arguments))
    (store / 'partial' / '00002.sentences').write_bytes(b'cut')
    build_store(corpus, store, str(vocabulary), CorpusOptions(workers=1), progress=False)
    assert read == [2]  # The other shards were done.
    build_store(corpus, store, str(vocabulary), CorpusOptions(workers=2), progress=False)
    assert read == [2]  # The store is finished, whatever the number of workers.

    other = tmp_path / 'other'
    for change in ('options', 'text'):
        _half_built(corpus, other, vocabulary, monkeypatch)
        read.clear()
        caplog.clear()
        options = CorpusOptions(workers=1, heldout=0.3 if change == 'options' else 0.02)
        if change == 'text':
            with open(tmp_path / 'corpus' / 'a.txt', 'ab') as file:
                file.write(b'\n\nThe mill.\n')
        with caplog.at_level(logging.INFO):
            report = build_store(corpus, other, str(vocabulary), options, progress=False)
        assert 0 in read and len(read) > 8
        assert 'thrown away' in caplog.text
        assert report['documents'] == len(DOCS) + (change == 'text')
        for name in directory_bytes(other):
            (other / name).unlink()


def test_a_finished_store_is_built_again_when_something_changed(tmp_path, vocabulary, caplog):
    path = tmp_path / 'a.txt'
    path.write_bytes(as_text(DOCS[:50]))
    assert build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)['documents'] == 50
    before = directory_bytes(tmp_path / 's')
    stamp = (tmp_path / 's' / 'manifest.json').stat().st_mtime_ns
    build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    assert (tmp_path / 's' / 'manifest.json').stat().st_mtime_ns == stamp
    path.write_bytes(as_text(DOCS[50:100]))
    with caplog.at_level(logging.WARNING):
        build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    assert 'built again' in caplog.text and directory_bytes(tmp_path / 's') != before
    path.write_bytes(as_text(DOCS[:50]))
    build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    after = directory_bytes(tmp_path / 's')
    assert after.keys() == before.keys() and all(after[name] == before[name] for name in after if name != 'inputs.json')
    uncased = load_tokenizer(str(vocabulary), lowercase=False)
    build_store(str(path), tmp_path / 's', uncased, progress=False)
    assert open_store(tmp_path / 's', tokenizer_fingerprint=uncased.fingerprint)


def test_no_path_or_time_is_in_the_store(tmp_path, vocabulary):
    for place in ('one', 'two'):
        (tmp_path / place / 'in').mkdir(parents=True)
        (tmp_path / place / 'in' / 'a.txt').write_bytes(as_text(DOCS[:50]))
        os.utime(tmp_path / place / 'in' / 'a.txt', (1e9, 1e9 + (place == 'two')))
        spec = str(tmp_path / place / 'in' / '*.txt')
        build_store(spec, tmp_path / place / 's', str(vocabulary), progress=False)
    one, two = (directory_bytes(tmp_path / place / 's') for place in ('one', 'two'))
    assert one.pop('inputs.json') != two.pop('inputs.json')  # There they are, for a quick look whether they changed.
    assert one == two


def test_a_directory_of_something_else_is_left_alone(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    (tmp_path / 'home').mkdir()
    (tmp_path / 'home' / 'thesis.tex').write_text('years')
    with pytest.raises(UserError, match='something else'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    with pytest.raises(UserError, match='local directory'):
        build_store(str(tmp_path / 'a.txt'), 'gs://bucket/store', str(vocabulary), progress=False)
    assert (tmp_path / 'home' / 'thesis.tex').exists()


def test_a_folder_called_partial_may_be_somebody_elses(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    foreign = [tmp_path / 'home' / name for name in ('partial/thesis.tex', 'of a book.tokens')]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('years')
    with pytest.raises(UserError, match='something else'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    foreign[0].unlink()
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    assert foreign[1].read_text() == 'years'


def test_what_a_run_keeps_beside_its_store_is_not_foreign(tmp_path, vocabulary):
    """Pairing plans, and the stores of a mixture that the corpus was before."""
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store' / '0', str(vocabulary), progress=False)
    (tmp_path / 'store' / 'plans').mkdir()
    (tmp_path / 'store' / 'plans' / '.plan-0.npy.tmp-7').touch()
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)
    for foreign in ('plans/thesis.tex', '7/thesis.tex'):
        path = tmp_path / foreign.partition('/')[0] / foreign
        path.parent.mkdir(parents=True)
        path.touch()
        with pytest.raises(UserError, match='something else'):
            build_store(str(tmp_path / 'a.txt'), path.parents[1], str(vocabulary), progress=False)


def test_two_builders_of_one_store_are_refused(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    (tmp_path / 'store').mkdir()
    handle = os.open(tmp_path / 'store', os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UserError, match='another process'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)
    os.close(handle)
    assert build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)['documents'] == 5


def test_progress_is_told_where_there_is_no_terminal(tmp_path, vocabulary, monkeypatch, capsys):
    """In megabytes of files, and in records of a dataset."""
    monkeypatch.setattr('bertjax.corpus.workers.LOG_EVERY', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:1000]))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: 1,000 documents, 0 of 0 MB, [\d.]+ MB/s, about 0 s left', last)
    build_store('pydoc:', tmp_path / 'other', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: (\d+) documents, \1 of \1 records, [\d.,]+ records/s.*', last), last


def test_the_bar_of_a_terminal_counts_records_of_a_dataset(monkeypatch):
    """Python's help has 79 documents, not 79 bytes."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, 'stderr', screen)
    with Progress(79, shown=True, in_bytes=False) as progress:
        progress.add(79, 79)
    text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', screen.getvalue())
    assert '79/79 documents' in text and 'bytes' not in text


def test_mixtures():
    assert parse_mixture('a.txt') == [('a.txt', None)]
    assert parse_mixture('a.txt, b.txt') == [('a.txt,b.txt', None)]
    assert parse_mixture('pydoc:=0.5,tfds:wiki40b/en@train#text=1.5') == [
        ('pydoc:', 0.5),
        ('tfds:wiki40b/en@train#text', 1.5),
    ]
    for spec, found in (
        ('a=1,b', 'some'),
        ('a=0', "weight '0'"),
        ('a=-1', 'weight'),
        ('a=nan', 'weight'),
        ('a,,b', 'empty'),
    ):
        with pytest.raises(UserError, match=found):
            parse_mixture(spec)
    with pytest.raises(UserError, match='a store'):
        build_store('pydoc:=1', 'unused', 'unused')
