"""When rows were written, as TensorBoard's files tell: what the goodput of a run is computed from."""

import pathlib
import struct
import subprocess
import sys

import pytest

from bertjax.report.run_record import Run
from bertjax.report.speed import speed
from bertjax.writers import tensorboard
from bertjax.writers.tensorboard import TensorBoard, read_times


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    now = {'time': 1000.0}
    monkeypatch.setattr(tensorboard.time, 'time', lambda: now['time'])
    return now


def test_no_row_waits_for_pytorch(tmp_path: pathlib.Path):
    program = (
        'import sys; from bertjax.writers.tensorboard import TensorBoard, read_times; from pathlib import Path; '
        'board = TensorBoard(sys.argv[1]); board.write({"step": 1, "split": "train", "loss": 0.5}); board.close(); '
        'print(len(read_times(Path(sys.argv[1]))), "torch" in sys.modules)'
    )
    done = subprocess.run([sys.executable, '-c', program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == '1 False\n'


def test_goodput(tmp_path: pathlib.Path, clock: dict[str, float]):
    """Two processes: the second trains steps 5 to 8 again, which the first had done to 6."""
    rows = []
    for process, steps in enumerate([(2, 4, 6), (6, 8)]):
        board = TensorBoard(tmp_path / 'tensorboard')
        clock['time'] = 1000.0 + 100 * process
        board.write({'step': 4 * process, 'split': 'heldout', 'loss': 1.0})
        for step in steps:
            clock['time'] += 3  # two steps of a second each, and one for something else
            row = {'step': step, 'split': 'train', 'sequences_per_s': 8.0, 'seconds_per_step': 1.0}
            board.write(row)
            rows = [one for one in rows if one['step'] < step] + [row]
        board.close()
        (event,) = (tmp_path / 'tensorboard').glob('events.out*')
        event.rename(tmp_path / 'tensorboard' / f'events-{process}')
    times = read_times(tmp_path / 'tensorboard')
    first = [(0, 'heldout', 1000), (2, 'train', 1003), (4, 'train', 1006), (6, 'train', 1009)]
    second = [(4, 'heldout', 1100), (6, 'train', 1103), (8, 'train', 1106)]
    assert times == [first, second]
    text = str(speed(Run(tmp_path, 'recipe', {}, True, rows)).body[-1])
    assert 'Goodput 53.3%: of 15.0 s' in text and 'of 2 processes, 8.0 s were' in text  # 8 steps in 9 + 6 seconds
    path = tmp_path / 'tensorboard' / 'events-1'
    path.write_bytes(path.read_bytes()[:-3])  # of a process that was killed
    # Its last record is gone, which is one of three of the last row.
    assert read_times(tmp_path / 'tensorboard')[1] == second
    whole = path.read_bytes()
    (length,) = struct.unpack_from('<Q', whole)  # of the first record, behind which all is overwritten
    path.write_bytes(whole[: 16 + length] + whole[16 + length : 28 + length] + b'\xff' * (len(whole) - 28 - length))
    assert read_times(tmp_path / 'tensorboard') == [first]
    path.write_bytes(whole[:-24] + b'\xff' * 20 + whole[-4:])
    assert read_times(tmp_path / 'tensorboard')[1] == second
    path.write_bytes(whole[:40])
    assert read_times(tmp_path / 'tensorboard')[1:] == []
