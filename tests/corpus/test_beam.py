"""Tests that every Apache Beam runner builds the bytes of a local build, and that wrong flags are refused."""

import functools
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from corpus_text import directory_bytes

from bertjax.corpus import shards
from bertjax.corpus.beam import check_beam
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.texts import iter_part_texts, iter_texts, new_record
from bertjax.errors import UserError
from bertjax.text.sampling import iter_sentences, sample
from bertjax.text.symbols import count_symbols
from bertjax.text.vocabulary import count_words

WORDS = functools.partial(count_words, lowercase=True)
DIRECT = '--runner=DirectRunner'
MANY = '--direct_num_workers=2 --direct_running_mode=multi_processing'
PORTABLE = '--runner=PortableRunner --job_endpoint=embed --environment_type=LOOPBACK'
_RUNNER = """
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
class SomeOptions(PipelineOptions):
    @classmethod
    def _add_argparse_args(cls, parser):
        parser.add_argument('--some_address')
class SomeRunner(BundleBasedDirectRunner):
    pass
"""


def test_a_missing_package_is_an_error_with_a_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, 'apache_beam.options.pipeline_options', None)
    monkeypatch.delitem(sys.modules, 'bertjax.corpus.beam.flags', raising=False)
    with pytest.raises(UserError, match=r"without Apache Beam.*pip install 'bertjax\[beam\]'"):
        check_beam(DIRECT)


def test_pieces_in_order_are_the_whole_text(corpus):
    pieces = shards.cut_shards(resolve_sources(corpus), 'auto', in_order=True)
    options = CorpusOptions()
    texts = list(iter_part_texts([part for piece in pieces for part in piece], options, new_record()))
    assert len(pieces) > 5 and texts == list(iter_texts(corpus))
    sentences = list(iter_sentences(texts))
    drawn, count = sample(iter(sentences), 50, 3)
    assert ([sentences[index] for index in sample(range(count), 50, 3)[0]], len(sentences)) == (drawn, count)


@pytest.mark.parametrize(
    'flags', [DIRECT + ' --direct_runner_bundle_repeat=1', pytest.param(PORTABLE, marks=pytest.mark.slow)]
)
def test_a_store_has_the_bytes_of_a_local_build(flags, beam, corpus, tmp_path, vocabulary):
    options = CorpusOptions(heldout=0.05, drop_duplicates=True, workers=1)
    reports = [
        build_store(
            corpus, tmp_path / name, str(vocabulary), options, progress=False, beam=flags if name == 'beam' else ''
        )
        for name in ('local', 'beam')
    ]
    assert directory_bytes(tmp_path / 'beam') == directory_bytes(tmp_path / 'local')
    assert reports[0] == reports[1] and reports[0]['duplicate_documents'] == 150 and reports[0]['dropped']
    assert len(list((tmp_path / 'beam').glob('train-*-kept.tokens'))) > 5


@pytest.mark.slow
def test_an_error_of_a_worker_is_raised_once(beam, corpus, tmp_path, vocabulary, monkeypatch):
    with pytest.raises(UserError, match=r'f.txt:1: found invalid UTF-8 .*strict=False to drop it'):
        build_store(corpus, tmp_path / 'a', str(vocabulary), CorpusOptions(strict=True), progress=False, beam=DIRECT)
    assert not (tmp_path / 'a' / 'manifest.json').exists()
    monkeypatch.setattr('bertjax.corpus.beam.store.encode_shard', lambda *arguments: None)
    with pytest.raises(UserError, match=r'results missing in .* expected a folder that all workers share'):
        build_store(corpus, tmp_path / 'b', str(vocabulary), CorpusOptions(), progress=False, beam=DIRECT)
    monkeypatch.setattr('bertjax.corpus.beam.store.encode_shard', lambda *arguments: 1 / 0)
    with pytest.raises(UserError, match=r'config\.beam: found a failure of DirectRunner: division by zero'):
        build_store(corpus, tmp_path / 'b', str(vocabulary), CorpusOptions(), progress=False, beam=DIRECT)


@pytest.mark.parametrize(
    ('flags', 'found'),
    [
        ('--runer=DirectRunner', "'--runer', which Beam does not know"),
        ('--direct_num_workers=2 more', "'more', which Beam does not know"),
        ('--direct_num_workers=two', "invalid int value: 'two'"),
        ('--runner=Foo', 'Unexpected pipeline runner: Foo'),
        ('--runner="', 'No closing quotation'),
        ('--help', "'--help', which asks for help"),
        ('--runner=Foo.Bar', "--runner=Foo.Bar (No module named 'Foo')"),
        ('--runner=os.path', "--runner=os.path ('module' object is not callable)"),
        ('--runner=collections.OrderedDict', '--runner=collections.OrderedDict (OrderedDict), expected a runner'),
    ],
)
def test_wrong_flags_are_refused(flags, found, beam):
    with pytest.raises(UserError) as error:
        check_beam(flags)
    assert str(error.value).startswith('config.beam: found ') and found in str(error.value)
    check_beam('--runner=FlinkRunner --flink_master=localhost:8081 --of_its_job_server=1')


def test_a_runner_of_another_package_adds_its_options(beam, tmp_path, monkeypatch):
    (tmp_path / 'some_runner.py').write_text(_RUNNER)
    monkeypatch.syspath_prepend(tmp_path)
    check_beam('--runner=some_runner.SomeRunner --some_address=a:1')
    with pytest.raises(UserError, match=r"found '--some_adress', which Beam does not know"):
        check_beam('--runner=some_runner.SomeRunner --some_adress=a:1')


@pytest.mark.slow
def test_counts_and_samples_equal_those_of_the_whole_text(beam, corpus, tmp_path):
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

    first, second = corpus.split(',')
    options, folder = CorpusOptions(), tmp_path / 'counts'
    statistics = BeamTextStatistics([[first], [second]], options, DIRECT, folder)
    known: list = []
    texts = [list(iter_texts(spec, options, known.append)) for spec in (first, second)]
    counts, read = statistics.counts(WORDS, 10**6)
    assert counts == [count_words(some, True) for some in texts]
    assert [(one.name, one.facts) for one in read] == [(one.name, one.facts) for one in known]
    assert statistics.counts(count_symbols, 10**6)[0] == [dict(sorted(count_symbols(some).items())) for some in texts]
    assert statistics.sentences(100, 7)[0] == [sample(iter_sentences(some), 100, 7) for some in texts]
    joined = BeamTextStatistics([[first, second]], options, DIRECT, folder)
    assert joined.sentences(100, 7)[0] == [sample(iter_sentences(itertools.chain(*texts)), 100, 7)]
    assert not folder.exists()
    (tmp_path / 'empty.txt').write_bytes(b'\n')
    with pytest.raises(UserError, match='no text at all'):
        BeamTextStatistics([[first], [str(tmp_path / 'empty.txt')]], options, DIRECT, folder).counts(WORDS, 10**6)


_PROGRAM = """
import sys
from bertjax.corpus import shards
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
if __name__ == '__main__':
    shards.MIN_SHARD, shards.TARGET_SHARDS = 1 << 18, 10
    options = CorpusOptions(heldout=0.05, drop_duplicates=True, workers=1)
    build_store(*sys.argv[1:4], options, progress=False, beam=sys.argv[4])
"""


@pytest.mark.slow
def test_a_killed_build_continues_to_the_same_bytes(beam, shared, tmp_path, vocabulary):
    (tmp_path / 'program.py').write_text(_PROGRAM)
    names = ('enwiki-validation.txt', 'novels', 'enwiki-validation.tx?')  # The glob matches the first file again.
    spec = ','.join(str(shared / 'corpus' / name) for name in names)
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(shards.__file__).parents[2])}

    def start(store: str, flags: str) -> subprocess.Popen:
        command = [sys.executable, 'program.py', spec, str(tmp_path / store), str(vocabulary), flags]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)

    def records() -> list[pathlib.Path]:
        return list((tmp_path / 'beam' / 'partial').glob('[0-9]*.json'))

    assert start('local', '').wait(120) == 0
    process = start('beam', MANY)
    deadline = time.monotonic() + 120
    while len(records()) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = {path: path.stat().st_mtime_ns for path in records()}
    assert done and not (tmp_path / 'beam' / 'manifest.json').exists()
    ended = start('beam', MANY)
    assert not ended.communicate(timeout=120)[1].count(b'Traceback') and ended.returncode == 0
    assert directory_bytes(tmp_path / 'beam') == directory_bytes(tmp_path / 'local')
    assert len(json.loads((tmp_path / 'beam' / 'manifest.json').read_text())['splits']['train']['shards']) > 5
