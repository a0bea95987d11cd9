"""Flattens the ids of many texts into one array, as in a token store."""

from collections.abc import Sequence

import numpy as np


def flatten(ids: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all texts, int32 [T], and the number of ids of each text, int64 [N]."""
    return np.concatenate([*ids, np.empty(0, np.int32)]), np.fromiter(map(len, ids), np.int64, len(ids))
