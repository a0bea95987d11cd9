"""TensorBoard's files are written without TensorFlow and PyTorch."""

import pathlib
import subprocess
import sys


def test_no_row_waits_for_pytorch(tmp_path: pathlib.Path):
    program = (
        'import sys; from bertjax.writers.tensorboard import TensorBoard; board = TensorBoard(sys.argv[1]); '
        'board.write({"step": 1, "split": "train", "loss": 0.5}); board.close(); print("torch" in sys.modules)'
    )
    done = subprocess.run([sys.executable, '-c', program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == 'False\n' and list(tmp_path.glob('events*'))
