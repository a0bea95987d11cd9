"""Tests that Beam's DaskRunner on a real cluster of local processes builds the bytes of a local build."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import dask_cluster
import pytest
from corpus_text import directory_bytes

from bertjax.corpus.beam import check_beam
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.texts import iter_texts
from bertjax.errors import UserError
from bertjax.text.sampling import iter_sentences, sample
from bertjax.text.vocabulary import count_words

NOBODY = '--runner=DaskRunner --dask_client_address=tcp://127.0.0.1:1 --dask_connection_timeout=1'
OPTIONS = CorpusOptions(heldout=0.05, drop_duplicates=True, workers=1)


@pytest.fixture
def dask(beam):
    return pytest.importorskip('distributed', reason='needs the extra dask')


@pytest.fixture
def build(corpus, tmp_path, vocabulary):
    """build(name, flags='', options=OPTIONS) -> the report of building the store tmp_path/name."""

    def run(name: str, flags: str = '', options: CorpusOptions = OPTIONS) -> dict:
        return build_store(corpus, tmp_path / name, str(vocabulary), options, progress=False, beam=flags)

    return run


def kill_at_the_first_record(process: subprocess.Popen, store: pathlib.Path) -> tuple[threading.Thread, list[int]]:
    """Starts a thread that kills `process` when a shard is done, and appends the number of done shards to the list."""
    done: list[int] = []

    def watch() -> None:
        while not (records := list((store / 'partial').glob('[0-9]*.json'))):
            time.sleep(0.001)
        process.kill()
        done.append(len(records))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread, done


def test_missing_packages_are_an_error_with_a_fix(beam, monkeypatch):
    for name in [name for name in sys.modules if name.startswith('apache_beam.runners.dask')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'dask.bag', None)
    with pytest.raises(UserError, match=r"--runner=DaskRunner without Dask.*pip install 'bertjax\[dask\]'"):
        check_beam('--runner=DaskRunner')


@pytest.mark.parametrize(
    ('flags', 'found'),
    [
        (NOBODY, 'no Dask scheduler at tcp://127.0.0.1:1 (Timed out'),
        (NOBODY.replace('DaskRunner', 'apache_beam.runners.dask.dask_runner.DaskRunner'), 'no Dask scheduler at tcp'),
        ('--runner=DaskRunner --dask_client_address=somewhere', "missing port number in address 'somewhere'"),
        ('--runner=DaskRunner --dask_client_address=tcp://a:b', 'no Dask scheduler at tcp://a:b (invalid literal'),
        ('--runner=DaskRunner --dask_scheduler_file=/not/there.json', 'there is no file /not/there.json'),
        ('--runner=DaskRunner --dask_scheduler_file=/tmp', 'no address in /tmp'),
        ('--runner=DaskRunner --dask_client_adress=a:1', "'--dask_client_adress', which Beam does not know"),
        ('--runner=DaskRunner --dask_npartitions=2 --dask_partition_size=2', 'not allowed with argument'),
    ],
)
def test_a_missing_scheduler_is_an_error_of_one_line(dask, flags, found):
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        check_beam(flags)
    assert found in str(error.value) and '\n' not in str(error.value) and time.monotonic() - start < 20


def test_the_scheduler_of_dasks_configuration_is_used(dask, monkeypatch):
    """A pod of a DaskJob has the address in DASK_SCHEDULER_ADDRESS."""
    import dask.config

    with (
        dask.config.set({'scheduler-address': 'tcp://127.0.0.1:1'}),
        pytest.raises(UserError, match=r'no Dask scheduler at tcp://127\.0\.0\.1:1'),
    ):
        check_beam('--runner=DaskRunner --dask_connection_timeout=1')


@pytest.mark.parametrize(
    ('flags', 'elements', 'size'),
    [
        ('', 10, 1),
        ('', 1024, 1),
        ('', 14_900, 15),
        (' --dask_partition_size=7', 10, 7),
        (' --dask_npartitions=2', 9, None),
    ],
)
def test_few_shards_have_one_partition_each(dask, flags, elements, size):
    from apache_beam.runners.dask.dask_runner import DaskOptions

    from bertjax.corpus.beam.flags import parse_flags

    options = parse_flags('--runner=DaskRunner' + flags, elements)[1].view_as(DaskOptions)
    assert options.partition_size == size and options.timeout == 10


@pytest.mark.slow
def test_a_store_and_statistics_for_vocabularies_equal_local_ones(dask_cluster, build, corpus, tmp_path):
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

    dask_cluster.wait_for_workers(2)
    dask_cluster.encoders()
    reports = build('local'), build('dask', dask_cluster.flags)
    assert directory_bytes(tmp_path / 'dask') == directory_bytes(tmp_path / 'local')
    assert reports[0] == reports[1] and reports[0]['duplicate_documents'] == 150 and reports[0]['dropped']
    assert len(dask_cluster.encoders()) == 2
    specs, texts = corpus.split(','), list(iter_texts(corpus))
    statistics = BeamTextStatistics([specs], CorpusOptions(), dask_cluster.flags, tmp_path / 'counts')
    assert statistics.counts(functools.partial(count_words, lowercase=True), 10**6)[0] == [count_words(texts, True)]
    assert statistics.sentences(100, 7)[0] == [sample(iter_sentences(texts), 100, 7)]
    with pytest.raises(UserError, match=r'f.txt:1: found invalid UTF-8 .*strict=False to drop it'):
        build('strict', dask_cluster.flags, CorpusOptions(strict=True))


@pytest.mark.slow
def test_a_build_survives_a_killed_worker(dask_cluster, build, tmp_path):
    dask_cluster.wait_for_workers(2)
    build('local')
    thread, done = kill_at_the_first_record(dask_cluster.workers.pop(), tmp_path / 'dask')
    build('dask', dask_cluster.flags)
    thread.join()
    dask_cluster.workers.append(dask_cluster.start_worker())
    assert directory_bytes(tmp_path / 'dask') == directory_bytes(tmp_path / 'local')
    assert done[0] < len(list((tmp_path / 'local').glob('train-*.tokens')))


@pytest.mark.slow
def test_a_build_continues_after_a_killed_scheduler(dask, build, tmp_path):
    (tmp_path / 'cluster').mkdir()
    with dask_cluster.started(tmp_path / 'cluster', workers=1) as cluster:
        cluster.wait_for_workers(1)
        thread, _ = kill_at_the_first_record(cluster.scheduler, tmp_path / 'dask')
        with pytest.raises(UserError, match='a failure of DaskRunner: the connection to the scheduler is lost'):
            build('dask', cluster.flags)
        thread.join()
    build('local')
    build('dask')  # Continues the build.
    assert directory_bytes(tmp_path / 'dask') == directory_bytes(tmp_path / 'local')


@pytest.mark.slow
def test_the_launcher_starts_a_cluster_and_ends_it(dask, shared, tmp_path, vocabulary):
    """A fake ssh runs the commands for two machines on this machine."""
    programs, work, text = tmp_path / 'bin', tmp_path / 'work', tmp_path / 'text.txt'
    programs.mkdir()
    (programs / 'ssh').write_text('#!/bin/bash\nshift 2\necho "on $1"\ncd /\nexec bash -c "$2"\n')
    (programs / 'ssh').chmod(0o755)
    text.write_bytes((shared / 'corpus' / 'enwiki-validation.txt').read_bytes()[:100_000])
    arguments = [f'--config.corpus={text}', f'--config.tokenizer={vocabulary}', '--config.run=corpus']
    launcher = dask_cluster.REPOSITORY / 'launch' / 'dask.sh'
    path = os.pathsep.join([str(programs), str(pathlib.Path(sys.executable).parent), os.environ['PATH']])
    subprocess.run(
        [
            launcher,
            '--hosts=a,b',
            '--workers=1',
            '--',
            '--config=configs/pretrain_tiny.py',
            f'--workdir={work}',
            *arguments,
        ],
        env={**dask_cluster.environment(), 'PATH': path},
        cwd=dask_cluster.REPOSITORY,
        check=True,
        timeout=300,
    )
    assert [(work / 'dask' / f'{name}.log').read_text().splitlines()[0] for name in 'ab'] == ['on a', 'on b']
    assert all('Registered to' in (work / 'dask' / f'{name}.log').read_text() for name in 'ab')
    shutil.move(work / 'store', tmp_path / 'dask')
    build_store(str(text), work / 'store', str(vocabulary), CorpusOptions(heldout=0.1), progress=False)
    assert directory_bytes(tmp_path / 'dask') == directory_bytes(work / 'store')
