"""Computes the scores of minimal pairs under a masked language model, in parts that are saved one by one."""

import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np

from bertjax.files.atomic import AtomicFile
from bertjax.inference.masked_lm import choose_score_lengths, pseudo_log_likelihoods
from bertjax.inference.runner import Runner
from bertjax.progress import Advance, scale_progress
from bertjax.tasks.minimal_pairs import deduplicate

_VERSION = 1  # increase this number if a change of the code changes the scores of the same sentences
_PART = 1024  # the number of pairs in a part; a part takes some seconds with a small model


def compute_scores(
    runner: Runner, sequences: Sequence[np.ndarray], folder: pathlib.Path, advance: Advance
) -> np.ndarray:
    """Computes the pseudo-log-likelihoods of N pairs, float64 [N, 2], in parts that are saved one by one.

    Args:
      sequences: The 2 N sequences of `tasks.minimal_pairs.encode_pairs`.
      folder: The folder for finished parts. The name of a part is a hash of its sentences and the model, so a run
        reuses only identical parts of an earlier run.

    Returns:
      The scores of the good and the bad sentence of each pair.
    """
    scores, lengths = [], choose_score_lengths(runner, sequences)
    for start in range(0, len(sequences), 2 * _PART):
        part = sequences[start : start + 2 * _PART]
        digest = hashlib.sha256(b'%d' % _VERSION + runner.model.fingerprint)
        for ids in part:
            digest.update(b'%d ' % len(ids) + ids.tobytes())
        path = folder / f'{start // (2 * _PART):06d}-{digest.hexdigest()[:32]}.npy'
        if path.exists():
            advance(len(part) // 2)
        else:
            with AtomicFile(path) as file:
                np.save(file, score_pairs(runner, part, lengths, advance))
        scores.append(np.load(path))
    return np.concatenate(scores)


def score_pairs(
    runner: Runner, sequences: Sequence[np.ndarray], lengths: tuple[int, ...], advance: Advance
) -> np.ndarray:
    """Computes the pseudo-log-likelihoods of N pairs at once, float64 [N, 2].

    See `compute_scores`, and `choose_score_lengths` for `lengths`.
    """
    distinct, index = deduplicate(sequences)
    step = scale_progress(advance, len(sequences) // 2, len(distinct))
    scores = pseudo_log_likelihoods(runner, distinct, step, lengths=lengths)
    return np.array([piece_scores.sum(dtype=np.float64) for piece_scores in scores])[index].reshape(-1, 2)
