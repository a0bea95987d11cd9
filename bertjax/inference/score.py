"""Scores texts, text pairs and minimal pairs with the heads from pre-training."""

import hashlib
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bertjax.data.features import INPUTS, masked_copies
from bertjax.files.atomic import AtomicFile
from bertjax.inference.encode import build_sequences
from bertjax.inference.runner import Forward, Runner
from bertjax.model.bert import BertForPreTraining
from bertjax.progress import Advance, ensure_progress, scale_progress
from bertjax.tasks.minimal_pairs import deduplicate
from bertjax.training.predict import SCORE_INPUTS, make_token_scores

_CHUNK = 1 << 20  # the approximate number of tokens in the masked copies that are in memory at once
_MAX_EXPONENT = 709  # the largest integer whose exp does not overflow float64
_VERSION = 2  # increase this number when a code change alters the scores of the same sentences
_PART = 1024  # the number of pairs in a part; a part takes some seconds with a small model


def pseudo_log_likelihoods(
    runner: Runner, sequences: Sequence[np.ndarray], advance: Advance | None = None
) -> list[np.ndarray]:
    """Computes the log-probability of each piece when only this piece is masked: float32 [S - 2] for each sequence.

    The sum over a sequence is its pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659, equation 1). The masked
    copies are computed in the order of their length, about _CHUNK tokens at a time.

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP].
      advance: A function of the approximate number of newly finished sequences; None shows a progress bar.
    """
    results = [np.zeros(0, np.float32)] * len(sequences)
    length = np.array([len(ids) for ids in sequences], np.int64)
    copies = np.maximum(length - 2, 0)
    order = np.argsort(length, kind='stable')
    order = order[copies[order] > 0]
    chunk = np.cumsum((length * copies)[order]) // _CHUNK
    with ensure_progress(advance, 'scoring', len(sequences)) as report:
        report(len(sequences) - len(order))
        step = scale_progress(report, len(order), int(copies.sum()))
        for rows in np.split(order, np.flatnonzero(np.diff(chunk)) + 1) if len(order) else []:
            features = masked_copies([sequences[row] for row in rows], runner.model.tokenizer.mask_id)
            outputs = runner.run('score', make_token_scores, features, inputs=SCORE_INPUTS, advance=step)
            scores = np.split(np.concatenate(outputs['log_probabilities']), np.cumsum(copies[rows])[:-1])
            for row, row_scores in zip(rows.tolist(), scores, strict=True):
                results[row] = row_scores
    return results


def score_texts(runner: Runner, texts: Sequence[str], advance: Advance | None = None) -> list[dict[str, Any]]:
    """Returns for each text, truncated to `runner.max_length`, the result of `masked_methods.MaskedMethods.score`.

    `tokens` does not count [CLS] and [SEP]; `words` counts whitespace-separated words after truncation.
    """
    if not texts:
        return []
    tokenizer, results = runner.model.tokenizer, []
    features = build_sequences(tokenizer, texts, None, runner.max_length)
    rows = np.split(features.tokens, features.offsets[1:-1])
    piece_scores = pseudo_log_likelihoods(runner, rows, advance)
    for text, ids, scores in zip(texts, rows, piece_scores, strict=True):
        total, tokens = float(scores.sum(dtype=np.float64)), len(scores)
        if len(ids) == runner.max_length:  # the text may have been truncated
            text = text[: tokenizer.encode_with_offsets([text])[0][2][tokens - 1]]
        score = {'log_likelihood': total, 'tokens': tokens, 'words': len(text.split())}
        results.append({**score, 'perplexity': _perplexity(total, tokens)})
    return results


def corpus_score(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combines scores of texts or earlier results of this function (Salazar et al. 2020, equation 3).

    The result has `texts`, `tokens`, `words`, `log_likelihood`, `perplexity` and `word_perplexity`, exp(-log_likelihood
    / words), which is comparable between vocabularies. A perplexity is None if it overflows float64, or if there
    are no tokens or words.
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
    scores = []
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
                np.save(file, score_minimal_pairs(runner, part, advance))
        scores.append(np.load(path))
    return np.concatenate(scores)


def score_minimal_pairs(runner: Runner, sequences: Sequence[np.ndarray], advance: Advance) -> np.ndarray:
    """Computes the scores of a part of `compute_scores`. Equal sentences are scored only once."""
    distinct, index = deduplicate(sequences)
    step = scale_progress(advance, len(sequences) // 2, len(distinct))
    scores = pseudo_log_likelihoods(runner, distinct, step)
    return np.array([piece_scores.sum(dtype=np.float64) for piece_scores in scores])[index].reshape(-1, 2)


def next_sentence_probabilities(
    runner: Runner, first: Sequence[str], second: Sequence[str], advance: Advance | None = None
) -> np.ndarray:
    """Computes `masked_methods.MaskedMethods.next_sentence` for N pairs, float64 [N]."""
    features = build_sequences(runner.model.tokenizer, first, second, runner.max_length)
    outputs = runner.run('pairs', _make_pairs, features, title='pairs', advance=advance)
    return np.array(outputs['probabilities'], np.float64)


def _make_pairs(module: nn.Module) -> Forward:
    def probabilities(bert: BertForPreTraining, *inputs: jax.Array) -> jax.Array:
        return jax.nn.softmax(bert.nsp(bert.pool(bert.encoder(*inputs)[0])), axis=-1)[:, 0]

    def forward(params, batch):
        inputs = [batch[name] for name in INPUTS]
        return {'probabilities': module.apply({'params': params}, *inputs, method=probabilities)}

    return forward
