"""Scores texts and minimal pairs with a masked language model: pseudo-log-likelihood and pseudo-perplexity."""

import hashlib
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.files.atomic import AtomicFile
from bertjax.inference.encode import build_sequences
from bertjax.inference.masked_lm import choose_score_lengths, pseudo_log_likelihoods
from bertjax.inference.runner import Runner
from bertjax.progress import Advance, scale_progress
from bertjax.tasks.minimal_pairs import deduplicate

_MAX_EXPONENT = 709  # the largest integer whose exp does not overflow float64
_VERSION = 1  # increase this number when a code change alters the scores of the same sentences
_PART = 1024  # the number of pairs in a part; a part takes some seconds with a small model


def score_texts(
    runner: Runner, texts: Sequence[str], max_length: int, advance: Advance | None = None
) -> list[dict[str, Any]]:
    """Returns for each text, truncated to `max_length` tokens, the result of `masked_methods.MaskedMethods.score`.

    `tokens` does not count [CLS] and [SEP]; `words` counts the whitespace-separated words that were read.
    """
    if not texts:
        return []
    tokenizer, results = runner.model.tokenizer, []
    features = build_sequences(tokenizer, texts, None, max_length)
    rows = np.split(features.tokens, features.offsets[1:-1])
    piece_scores = pseudo_log_likelihoods(runner, rows, choose_score_lengths(runner, rows), advance)
    for text, ids, scores in zip(texts, rows, piece_scores, strict=True):
        total, tokens = float(scores.sum(dtype=np.float64)), len(scores)
        if len(ids) == max_length:  # the text may have been truncated
            text = text[: tokenizer.encode_with_offsets([text])[0][2][tokens - 1]]
        score = {'log_likelihood': total, 'tokens': tokens, 'words': len(text.split())}
        results.append({**score, 'perplexity': _perplexity(total, tokens)})
    return results


def corpus_score(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combines the scores of texts, which may also be results of this function (Salazar et al. 2020, equation 3).

    The result has `texts`, `tokens`, `words`, `log_likelihood`, `perplexity` and `word_perplexity`, exp(-log_likelihood
    / words), which is comparable between vocabularies. A perplexity is None if it overflows float64, or without tokens
    or words.
    """
    total = {'texts': 0, 'tokens': 0, 'words': 0, 'log_likelihood': 0.0}
    for score in scores:
        total['texts'] += score.get('texts', 1)
        for name in ('tokens', 'words', 'log_likelihood'):
            total[name] += score[name]
    perplexity = _perplexity(total['log_likelihood'], total['tokens'])
    return {**total, 'perplexity': perplexity, 'word_perplexity': _perplexity(total['log_likelihood'], total['words'])}


def _perplexity(log_likelihood: float, count: int) -> float | None:
    return math.exp(-log_likelihood / count) if -log_likelihood < _MAX_EXPONENT * count else None


def compute_scores(
    runner: Runner, sequences: Sequence[np.ndarray], folder: pathlib.Path, advance: Advance
) -> np.ndarray:
    """Computes the pseudo-log-likelihoods of N pairs, float64 [N, 2], in parts that are saved one by one.

    `sequences` is the result of `tasks.minimal_pairs.encode_pairs`. The name of a part in `folder` has a hash of the
    sentences and the model, so a run reuses only identical parts of an earlier run. `advance` counts pairs.
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
                np.save(file, score_minimal_pairs(runner, part, lengths, advance))
        scores.append(np.load(path))
    return np.concatenate(scores)


def score_minimal_pairs(
    runner: Runner, sequences: Sequence[np.ndarray], lengths: tuple[int, ...], advance: Advance
) -> np.ndarray:
    """Computes the scores of a part of `compute_scores`. Equal sentences are scored only once."""
    distinct, index = deduplicate(sequences)
    step = scale_progress(advance, len(sequences) // 2, len(distinct))
    scores = pseudo_log_likelihoods(runner, distinct, lengths, step)
    return np.array([piece_scores.sum(dtype=np.float64) for piece_scores in scores])[index].reshape(-1, 2)
