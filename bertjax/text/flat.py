"""Ids of many texts one after the other, as a corpus is written."""

from collections.abc import Sequence

import numpy as np


def flatten(ids: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all texts (int32), and how many each has (int64, one a text)."""
    return np.concatenate([*ids, np.empty(0, np.int32)]), np.fromiter(map(len, ids), np.int64, len(ids))
