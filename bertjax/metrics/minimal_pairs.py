"""Accuracy on minimal pairs: how often a model prefers the good sentence, by set, by phenomenon and overall."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def pair_accuracies(correct: Sequence[bool], sets: Sequence[str], phenomena: Sequence[str]) -> dict[str, Any]:
    """Computes the accuracies on N pairs, as BLiMP reports them (Warstadt et al. 2020, arXiv 1912.00582).

    The accuracy p of a set is the fraction of correct pairs among its n pairs. Its standard error is the binomial
    √(p (1 - p) / n). The accuracy of a phenomenon is the mean over its sets, and `accuracy` is the mean over all sets.
    The standard error of a mean over K sets is √(Σ s_k²) / K, where s_k is the standard error of set k. It treats the
    pairs of a set as a random sample, and the sets as fixed.

    Args:
      correct: For each of N > 0 pairs, whether the model prefers the good sentence; False for a tie.
      sets, phenomena: The set and the phenomenon of each pair.

    Returns:
      A dict with `pairs`, `accuracy` and `standard_error`; `share`, the fraction of correct pairs among all pairs, with
      `share_standard_error`; and `phenomena` and `sets`, which map each name to `pairs`, `accuracy` and
      `standard_error`.
    """
    correct, names = np.asarray(correct, bool), np.asarray(sets)
    share = _share(correct)
    return {
        **_mean(correct, names),
        'share': share['accuracy'],
        'share_standard_error': share['standard_error'],
        'phenomena': {name: _mean(correct[mask], names[mask]) for name, mask in _groups(np.asarray(phenomena)).items()},
        'sets': {name: _share(correct[mask]) for name, mask in _groups(names).items()},
    }


def _groups(names: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns {name: mask of the pairs with this name, bool [N]}, in the order of their first pairs."""
    return {name: names == name for name in dict.fromkeys(names.tolist())}


def _share(correct: np.ndarray) -> dict[str, Any]:
    p, n = float(correct.mean()), len(correct)
    return {'pairs': n, 'accuracy': p, 'standard_error': math.sqrt(p * (1 - p) / n)}


def _mean(correct: np.ndarray, sets: np.ndarray) -> dict[str, Any]:
    shares = [_share(correct[mask]) for mask in _groups(sets).values()]
    return {
        'pairs': len(correct),
        'accuracy': float(np.mean([share['accuracy'] for share in shares])),
        'standard_error': math.hypot(*(share['standard_error'] for share in shares)) / len(shares),
    }
