"""Softmax in NumPy, for code without JAX."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis, in the dtype of `logits`."""
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)
