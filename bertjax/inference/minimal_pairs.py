"""Computes the scores of minimal pairs under a masked language model, in parts that are saved one by one."""

import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Sequence

import numpy as np

from bertjax.files.atomic import write_atomic
from bertjax.inference.masked_lm import choose_score_lengths, pseudo_log_likelihoods
from bertjax.inference.runner import Runner
from bertjax.progress import Advance, scale_progress
from bertjax.tasks.minimal_pairs import deduplicate

_VERSION = 1  # increase this number with any change to the scores of the same sentences
_PART = 1024  # the number of pairs in a part; it takes some seconds with a small model


@dataclasses.dataclass(frozen=True)
class PairScores:
    """The pseudo-log-likelihoods of N pairs.

    Attributes:
      runner: The runner of a model with an MLM head.
      sequences: The 2 N sequences of `tasks.minimal_pairs.encode_pairs`.
      folder: The folder for finished parts. The name of a part is a hash of its sentences and the model, so a run
        reuses only identical parts of an earlier run.
    """

    runner: Runner
    sequences: Sequence[np.ndarray]
    folder: pathlib.Path

    def compute(self, advance: Advance) -> np.ndarray:
        """Computes the missing parts, and returns the score of each good and bad sentence, float64 [N, 2].

        Args:
          advance: A function that is called with the number of newly finished pairs.
        """
        scores, lengths = [], choose_score_lengths(self.runner, self.sequences)
        for start in range(0, len(self.sequences), 2 * _PART):
            sequences = self.sequences[start : start + 2 * _PART]
            path = self.folder / f'{start // (2 * _PART):06d}-{self._key(sequences)}.npy'
            if not path.exists():
                buffer = io.BytesIO()
                np.save(buffer, score_pairs(self.runner, sequences, lengths, advance))
                write_atomic(path, buffer.getvalue())
            else:
                advance(len(sequences) // 2)
            scores.append(np.load(path))
        return np.concatenate(scores)

    def _key(self, sequences: Sequence[np.ndarray]) -> str:
        digest = hashlib.sha256(b'%d' % _VERSION + self.runner.model.fingerprint)
        for ids in sequences:
            digest.update(b'%d ' % len(ids) + ids.tobytes())
        return digest.hexdigest()[:32]


def score_pairs(
    runner: Runner, sequences: Sequence[np.ndarray], lengths: tuple[int, ...], advance: Advance
) -> np.ndarray:
    """Computes the pseudo-log-likelihoods of N pairs at once, float64 [N, 2].

    See `PairScores`, and `choose_score_lengths` for `lengths`.
    """
    distinct, index = deduplicate(sequences)
    step = scale_progress(advance, len(sequences) // 2, len(distinct))
    scores = pseudo_log_likelihoods(runner, distinct, step, lengths=lengths)
    return np.array([piece_scores.sum(dtype=np.float64) for piece_scores in scores])[index].reshape(-1, 2)
