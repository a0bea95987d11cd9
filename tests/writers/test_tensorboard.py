"""Tests that TensorBoard's files are written without importing PyTorch and bucket clients."""

import pathlib
import subprocess
import sys


def test_writing_rows_imports_no_unneeded_packages(tmp_path: pathlib.Path):
    program = (
        'import sys; from bertjax.writers.tensorboard import TensorBoard; board = TensorBoard(sys.argv[1]); '
        'board.write({"step": 1, "split": "train", "loss": 0.5}); board.close(); '
        'print([name for name in ("torch", "boto3", "google.cloud.storage") if name in sys.modules])'
    )
    result = subprocess.run([sys.executable, '-c', program, tmp_path], check=True, capture_output=True, text=True)
    assert result.stdout == '[]\n' and list(tmp_path.glob('events*'))
