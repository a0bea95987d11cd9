"""The list of a run's writers: each gets every row, and a failing writer does not affect the others."""

import pathlib

import pytest
from tensorboardX import event_file_writer

from bertjax.writers.jsonl import JsonLines
from bertjax.writers.tensorboard import TensorBoard
from bertjax.writers.writer import Writers

ROW = {'step': 4, 'split': 'train', 'phase': 0, 'loss': 1.5}


class Noted:
    """Records its calls."""

    def __init__(self, fails_at: str = ''):
        self.asked, self._fails_at = [], fails_at

    def __str__(self) -> str:
        return 'the noted one'

    def _note(self, name: str, *arguments: object) -> None:
        self.asked.append((name, *arguments))
        if name == self._fails_at:
            raise OSError(28, 'No space left on device')

    def truncate_after(self, step: int) -> None:
        self._note('truncate_after', step)

    def write(self, row: dict) -> None:
        self._note('write', row)

    def close(self) -> None:
        self._note('close')


@pytest.mark.parametrize('fails_at', ['truncate_after', 'write', 'close'])
def test_a_failing_writer_is_removed_with_one_warning(fails_at: str, caplog: pytest.LogCaptureFixture):
    sound, broken = Noted(), Noted(fails_at)
    writers = Writers([broken, sound])
    writers.truncate_after(3)
    for _ in range(3):
        writers.write(ROW)
    writers.close()
    assert sound.asked == [('truncate_after', 3), *[('write', ROW)] * 3, ('close',)]
    assert [name for name, *_ in broken.asked].count(fails_at) == 1 and broken.asked[-1][0] == fails_at
    (record,) = caplog.records
    assert 'the noted one' in record.message and 'No space left on device' in record.message


def test_a_full_disk_ends_tensorboard_and_nothing_else(tmp_path: pathlib.Path, monkeypatch, caplog):
    """On a full disk, a background thread would die, and the training would wait for it forever."""

    def full(self, data: bytes) -> None:
        raise OSError(28, 'No space left on device')

    writers = Writers([TensorBoard(tmp_path / 'tensorboard'), JsonLines(tmp_path / 'metrics.jsonl')])
    writers.write(ROW)
    monkeypatch.setattr(event_file_writer.RecordWriter, 'write', full)
    for _ in range(200):  # more rows than any queue holds
        writers.write(ROW)
    writers.close()
    assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 201
    (record,) = caplog.records
    assert 'tensorboard failed and gets no more rows; the training continues' in record.message
