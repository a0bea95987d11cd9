"""Runs code beside the files of an export, in a process that cannot import bertjax."""

import os
import pathlib
import subprocess
import sys

import numpy as np


def run_without_bertjax(folder: pathlib.Path, code: str, *arguments: str) -> str:
    """Returns what the code prints."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    call = [sys.executable, '-c', f"import sys; sys.modules['bertjax'] = None\n{code}", *arguments]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_readme(folder: pathlib.Path) -> str:
    """Runs the code in README.md; returns the shapes of its outputs, as printed."""
    code = (folder / 'README.md').read_text().split('```')[1].removeprefix('python')
    return run_without_bertjax(folder, f'{code}\nprint({{name: x.shape for name, x in outputs.items()}})')


def random_batch(shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Returns int32 inputs of a model with 143 pieces and two segments, with rows of several lengths."""
    rng = np.random.default_rng(seed)
    mask = np.arange(shape[-1]) < rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    arrays = {'input_ids': rng.integers(5, 143, shape), 'segment_ids': rng.integers(0, 2, shape)}
    return {name: x.astype(np.int32) for name, x in {**arrays, 'attention_mask': mask}.items()}
