"""TensorBoard's files are written without TensorFlow, PyTorch and clients of buckets."""

import pathlib
import subprocess
import sys


def test_no_row_waits_for_packages_that_it_does_not_need(tmp_path: pathlib.Path):
    program = (
        'import sys; from bertjax.writers.tensorboard import TensorBoard; board = TensorBoard(sys.argv[1]); '
        'board.write({"step": 1, "split": "train", "loss": 0.5}); board.close(); '
        'print([name for name in ("torch", "boto3", "google.cloud.storage") if name in sys.modules])'
    )
    done = subprocess.run([sys.executable, '-c', program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == '[]\n' and list(tmp_path.glob('events*'))
