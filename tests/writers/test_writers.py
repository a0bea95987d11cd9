"""Tests that each of a run's writers gets every row, and that a failing writer does not affect the others."""

import pathlib

import pytest

from bertjax.writers.jsonl import JsonLines
from bertjax.writers.tensorboard import TensorBoard
from bertjax.writers.writer import Writers

ROW = {'step': 4, 'split': 'train', 'phase': 0, 'loss': 1.5}


class RecordingWriter:
    """Records its calls."""

    def __init__(self, fails_at: str = ''):
        self.calls, self._fails_at = [], fails_at

    def __str__(self) -> str:
        return 'the recording writer'

    def _record(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name == self._fails_at:
            raise OSError(28, 'No space left on device')

    def truncate_after(self, step: int) -> None:
        self._record('truncate_after', step)

    def write(self, row: dict) -> None:
        self._record('write', row)

    def close(self) -> None:
        self._record('close')


@pytest.mark.parametrize('fails_at', ['truncate_after', 'write', 'close'])
def test_a_failing_writer_is_removed_with_one_warning(fails_at: str, caplog: pytest.LogCaptureFixture):
    working, failing = RecordingWriter(), RecordingWriter(fails_at)
    writers = Writers([failing, working])
    writers.truncate_after(3)
    for _ in range(3):
        writers.write(ROW)
    writers.close()
    assert working.calls == [('truncate_after', 3), *[('write', ROW)] * 3, ('close',)]
    assert [name for name, *_ in failing.calls].count(fails_at) == 1 and failing.calls[-1][0] == fails_at
    (record,) = caplog.records
    assert 'the recording writer' in record.message and 'No space left on device' in record.message


def test_a_full_disk_stops_only_tensorboard(tmp_path: pathlib.Path, caplog):
    board = TensorBoard(tmp_path / 'tensorboard')
    writers = Writers([board, JsonLines(tmp_path / 'metrics.jsonl')])
    writers.write(ROW)
    board.close()
    with open('/dev/full', 'wb', buffering=0) as board._file:
        for _ in range(200):
            writers.write(ROW)
    writers.close()
    assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 201
    (record,) = caplog.records
    assert 'tensorboard failed and gets no more rows; the training continues' in record.message
