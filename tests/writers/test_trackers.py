"""Tests experiment trackers with their real packages, and failing trackers."""

import json
import os
import pathlib
import queue
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from bertjax.errors import UserError
from bertjax.writers import tracker
from bertjax.writers.jsonl import JsonLines
from bertjax.writers.tracker import Tracker, check_tracker
from bertjax.writers.writer import Writers

CONFIG = {'learning_rate': 1e-3, 'model': {'width': 32}, 'phases': [{'steps': '90%'}], 'steps': 8}
ROWS = [
    {'step': 0, 'split': 'heldout', 'phase': 0, 'examples': 0, 'mlm_loss': 7.5, 'nsp_loss': None},
    {'step': 4, 'split': 'train', 'phase': 0, 'examples': 32, 'loss': 7.25, 'skipped': 0},
    {'step': 8, 'split': 'heldout', 'phase': 0, 'examples': 64, 'mlm_loss': 6.5, 'nsp_loss': None},
]
SENT = [(0, 'heldout/mlm_loss', 7.5), (4, 'train/loss', 7.25), (8, 'heldout/mlm_loss', 6.5)]


def send(service: str, folder: pathlib.Path, rows: list[dict], step: int, name: str = 'tiny') -> dict:
    """Logs as a process that starts (step -1) or continues at `step`; returns the content of tracker.json."""
    writer = Tracker(service, 'bert', folder, name, CONFIG)
    writer.truncate_after(step)
    for row in rows:
        writer.write(row)
    writer.close()
    return json.loads((folder / 'tracker.json').read_text())


def send_twice(service: str, folder: pathlib.Path, **environment: str) -> str:
    """Logs from two new processes, as the packages read their environment only once; returns the id of their run."""
    script = (
        'import json, pathlib, sys; sys.path.insert(0, sys.argv[1]); import test_trackers as t\n'
        'print(t.send(sys.argv[5], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))["run"])'
    )
    tests, runs = pathlib.Path(__file__).parent, set()
    environment = os.environ | {'PYTHONPATH': str(tests.parents[1])} | environment
    for rows, step in ((ROWS[:2], -1), (ROWS[2:], 4)):
        command = [sys.executable, '-c', script, str(tests), str(folder), json.dumps(rows), str(step), service]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        runs.add(out.split()[-1])
    (run,) = runs
    return run


class FakeTracker:
    """A tracker that records its calls."""

    def __init__(self):
        self.sent, self.run_id, self.finished, self.may_log = [], None, False, threading.Event()
        self.may_log.set()

    def start(self, project, name, folder, config, run_id):
        self.run_id = run_id
        return run_id or f'{name}-1'

    def log(self, step, values):
        self.may_log.wait(30)
        if step == 13:
            raise ConnectionError('gone')
        self.sent.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeTracker]:
    created: list[FakeTracker] = []
    monkeypatch.setitem(tracker.SERVICES, 'trackio', lambda: created.append(FakeTracker()) or created[-1])
    return created


def test_a_later_process_continues_the_same_run(fakes: list[FakeTracker], tmp_path: pathlib.Path):
    first = send('trackio', tmp_path, ROWS[:2], -1)
    assert first == {'tracker': 'trackio', 'project': 'bert', 'run': 'tiny-1'}
    assert send('trackio', tmp_path, ROWS[2:], 4) == first
    assert [fake.run_id for fake in fakes] == ['', 'tiny-1'] and all(fake.finished for fake in fakes)
    values = {'examples': 64.0, 'mlm_loss': 6.5}
    # The values exclude the step, the phase and None.
    assert fakes[1].sent == [(8, {f'heldout/{name}': x for name, x in values.items()})]
    send('trackio', tmp_path, ROWS, -1)  # The run starts again.
    assert fakes[2].run_id == ''
    (tmp_path / 'tracker.json').write_text('{"run"')
    send('trackio', tmp_path, ROWS, 4)
    assert fakes[3].run_id == ''


def test_no_row_waits_for_the_tracker(
    fakes: list[FakeTracker], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """If the network hangs, writing a row does not wait, and closing waits only for its timeout."""
    writer = Tracker('trackio', 'bert', tmp_path, 'tiny', CONFIG)
    fakes[0].may_log.clear()
    start = time.monotonic()
    for step in range(1000):
        writer.write({**ROWS[1], 'step': step + 100})
    monkeypatch.setattr(tracker, '_CLOSE_SECONDS', 0.1)
    with pytest.raises(TimeoutError, match='it did not accept all rows'):
        writer.close()
    assert time.monotonic() - start < 5 and not fakes[0].sent
    fakes[0].may_log.set()


def test_a_failing_tracker_is_removed_with_one_warning(fakes: list[FakeTracker], tmp_path: pathlib.Path, caplog):
    writer = Tracker('trackio', 'bert', tmp_path, 'tiny', CONFIG)
    writers = Writers([writer, JsonLines(tmp_path / 'metrics.jsonl')])
    writers.write({**ROWS[0], 'step': 13})
    writer._thread.join(10)
    for row in ROWS:
        writers.write(row)
    writers.close()
    assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 4
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert warning.startswith('the tracker trackio failed') and "ConnectionError('gone')" in warning


def test_the_queue_of_rows_is_bounded(fakes: list[FakeTracker], tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(tracker, '_MAX_QUEUED', 3)
    writer = Tracker('trackio', 'bert', tmp_path, 'tiny', CONFIG)
    fakes[0].may_log.clear()
    with pytest.raises(queue.Full):
        for _ in range(9):
            writer.write(ROWS[0])
    fakes[0].may_log.set()


@pytest.mark.parametrize('service', ['wandb', 'mlflow', 'trackio'])
def test_a_missing_package_is_an_error(service: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UserError, match=rf"config.tracker: found no {service}.*pip install 'bertjax\[{service}\]'"):
        check_tracker(service)
    check_tracker('')


def test_a_folder_is_not_the_package_of_a_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """W&B keeps its runs in a folder `wandb`, which Python could import."""
    (tmp_path / 'no_tracker').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r'config\.tracker: found no no_tracker'):
        check_tracker('no_tracker')


@pytest.mark.slow
def test_wandb_without_a_key_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """Otherwise wandb would ask for a key during the training."""
    pytest.importorskip('wandb', reason="needs the extra 'wandb'")
    for name in ('WANDB_MODE', 'WANDB_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('NETRC', str(tmp_path / 'none'))
    with pytest.raises(UserError, match=r'no API key to log in with.*WANDB_MODE=offline'):
        check_tracker('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    check_tracker('wandb')


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a .wandb file: 7 bytes, then LevelDB's log in blocks of 32 KiB.

    A block consists of pieces: checksum (4 bytes), length (2), kind (1: whole, first, middle or last), data.
    """
    at, record = 7, b''
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from('<HB', data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b''


@pytest.mark.slow
def test_wandb_offline_files_belong_to_one_run(tmp_path: pathlib.Path):
    pytest.importorskip('wandb', reason="needs the extra 'wandb'")
    from wandb.proto.wandb_internal_pb2 import Record

    run = send_twice('wandb', tmp_path, WANDB_MODE='offline')
    history, config = [], {}
    paths = sorted(tmp_path.glob(f'wandb/offline-run-*/run-{run}.wandb'))
    assert len(paths) == 2
    for path in paths:
        for record in map(Record.FromString, _wandb_records(path.read_bytes())):
            if record.WhichOneof('record_type') == 'history':
                items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
                history.append(items)
            if record.WhichOneof('record_type') == 'run':
                assert (record.run.project, record.run.display_name) == ('bert', 'tiny')
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    logged = [(row['step'], name, value) for row in history for name, value in row.items()]
    assert [value for value in logged if value[1] in {name for _, name, _ in SENT}] == SENT
    assert config['learning_rate'] == 1e-3 and config['phases[0].steps'] == '90%'


def _mlflow_rows(run: str) -> list[tuple[int, str, float]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    assert client.get_run(run).data.params['phases.0.steps'] == '90%'
    assert client.get_run(run).info.status == 'FINISHED' and client.get_run(run).info.run_name == 'tiny'
    names = {name for _, name, _ in SENT}
    return sorted((x.step, name, x.value) for name in names for x in client.get_metric_history(run, name))


@pytest.mark.slow
def test_mlflow_with_a_sqlite_file_continues_the_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip('mlflow', reason="needs the extra 'mlflow', which is large")
    monkeypatch.setattr(mlflow, 'get_tracking_uri', mlflow.get_tracking_uri)
    mlflow.set_tracking_uri(f'sqlite:///{tmp_path}/mlflow.db')
    run = send('mlflow', tmp_path, ROWS[:2], -1)['run']
    assert send('mlflow', tmp_path, ROWS[2:], 4)['run'] == run
    assert _mlflow_rows(run) == SENT
    assert send('mlflow', tmp_path, ROWS, -1)['run'] != run  # A new run in the existing experiment.


@pytest.mark.slow
def test_mlflow_with_a_server_continues_the_run(tmp_path: pathlib.Path):
    """Uses a real server on this machine."""
    mlflow = pytest.importorskip('mlflow', reason="needs the extra 'mlflow', which is large")
    uri = 'http://127.0.0.1:5917'
    command = [sys.executable, '-m', 'mlflow', 'server', '--host', '127.0.0.1', '--port', '5917', '--workers', '1']
    store = ['--backend-store-uri', f'sqlite:///{tmp_path}/mlflow.db']
    server = subprocess.Popen([*command, *store], cwd=tmp_path, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f'{uri}/health', timeout=2)
                break
            except OSError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.2)
        mlflow.set_tracking_uri(uri)
        run = send('mlflow', tmp_path, ROWS[:2], -1)['run']
        assert send('mlflow', tmp_path, ROWS[2:], 4)['run'] == run
        assert _mlflow_rows(run) == SENT
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


@pytest.mark.slow
def test_trackio_has_one_run_for_both_processes(tmp_path: pathlib.Path):
    pytest.importorskip('trackio', reason="needs the extra 'trackio'")
    assert send_twice('trackio', tmp_path, TRACKIO_DIR=str(tmp_path / 'trackio')).startswith('tiny-')
    (path,) = (tmp_path / 'trackio').glob('*.db')
    with sqlite3.connect(path) as database:
        written = database.execute('select step, metrics from metrics order by step').fetchall()
    logged = [(step, name, value) for step, text in written for name, value in json.loads(text).items()]
    assert [value for value in logged if value[1] in {name for _, name, _ in SENT}] == SENT
