"""Predictions of the pre-training heads: masked pieces, pseudo-log-likelihoods and next-sentence probabilities."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.features import INPUTS, FeatureBuilder, masked_copies
from bertjax.inference.encode import build_sequences
from bertjax.inference.runner import Runner
from bertjax.model.bert import BertForPreTraining
from bertjax.progress import Advance, ensure_progress, scale_progress
from bertjax.training.predict import SCORE_INPUTS, Forward, make_token_scores

_CHUNK = 1 << 20  # the approximate number of tokens in the masked copies that are in memory at once


def predict_pieces(
    runner: Runner,
    sequences: Sequence[np.ndarray],
    positions: Sequence[Sequence[int]],
    top_k: int,
    *,
    words_only: bool = False,
    title: str = '',
    advance: Advance | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predicts the most probable pieces at given positions of sequences.

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP].
      positions: The positions in each sequence, at least one per sequence.
      top_k: The number K of pieces per position, reduced if there are fewer candidates.
      words_only: Whether to exclude special tokens. The probabilities of the other pieces do not change.
      title, advance: See `Runner.run`.

    Returns:
      For each sequence with M positions, the ids of the pieces, int32 [M, K], and their log-probabilities, float32 [M,
        K],
      the most probable first.
    """
    tokenizer = runner.model.tokenizer
    # The embedding table may have more rows than the tokenizer has pieces.
    banned = np.arange(tokenizer.vocab_size, runner.model.config.vocab_size)
    banned = np.concatenate([banned, tokenizer.special_ids]) if words_only else banned
    top_k = min(top_k, runner.model.config.vocab_size - len(banned))
    make_forward = functools.partial(_make_predict_pieces, top_k=top_k, banned=banned)
    # All rows of a batch need equally many positions. Rows are grouped by this number, rounded up to a power of two.
    size = np.array([1 << (len(row) - 1).bit_length() for row in positions])
    results: list = [None] * len(sequences)
    inputs = (*INPUTS, 'masked_positions')
    with ensure_progress(advance, title, len(sequences)) as report:
        for count_limit in np.unique(size).tolist():
            builder, rows = FeatureBuilder(), np.flatnonzero(size == count_limit).tolist()
            for number, row in enumerate(rows):
                builder.add_sequence(sequences[row])
                padding = (0, count_limit - len(positions[row]))
                builder.add_row(number, masked_positions=np.pad(np.int32(positions[row]), padding))
            outputs = runner.run(
                ('predict_pieces', top_k, words_only), make_forward, builder.build(), inputs=inputs, advance=report
            )
            for row, ids, scores in zip(rows, outputs['ids'], outputs['log_probabilities'], strict=True):
                count = len(positions[row])
                results[row] = ids[:count], scores[:count]
    return results


def _make_predict_pieces(module: nn.Module, top_k: int, banned: np.ndarray) -> Forward:
    def forward(params, batch):
        inputs = [batch[name] for name in (*INPUTS, 'masked_positions')]
        logits = module.apply({'params': params}, *inputs)['mlm_logits']
        scores = jax.nn.log_softmax(logits[..., : module.config.vocab_size], axis=-1)  # [B, P, V]
        scores, ids = jax.lax.top_k(scores.at[..., banned].set(-jnp.inf), top_k)
        return {'ids': ids, 'log_probabilities': scores}

    return forward


def pseudo_log_likelihoods(
    runner: Runner, sequences: Sequence[np.ndarray], lengths: tuple[int, ...], advance: Advance | None = None
) -> list[np.ndarray]:
    """Computes the log-probability of each piece when only this piece is masked: float32 [S - 2] for each sequence.

    The sum over a sequence is its pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659, equation 1). The masked
    copies are computed in the order of their length, about _CHUNK tokens at a time.

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP].
      lengths: The result of `choose_score_lengths`; () for the lengths in `runner.LENGTHS`.
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
            outputs = runner.run(
                'score', make_token_scores, features, inputs=SCORE_INPUTS, lengths=lengths, advance=step
            )
            scores = np.split(np.concatenate(outputs['log_probabilities']), np.cumsum(copies[rows])[:-1])
            for row, row_scores in zip(rows.tolist(), scores, strict=True):
                results[row] = row_scores
    return results


def choose_score_lengths(runner: Runner, sequences: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Chooses padded lengths for the masked copies of the sequences; see `Runner.choose_lengths`."""
    length = np.array([len(ids) for ids in sequences], np.int64)
    return runner.choose_lengths(np.repeat(length, np.maximum(length - 2, 0)))


def next_sentence_probabilities(
    runner: Runner, first: Sequence[str], second: Sequence[str], max_length: int, advance: Advance | None = None
) -> np.ndarray:
    """Computes `masked_methods.MaskedMethods.next_sentence` for N pairs, float64 [N]."""
    features = build_sequences(runner.model.tokenizer, first, second, max_length)
    outputs = runner.run('pairs', _make_pairs, features, title='pairs', advance=advance)
    return np.array(outputs['probabilities'], np.float64)


def _make_pairs(module: nn.Module) -> Forward:
    def probabilities(bert: BertForPreTraining, *inputs: jax.Array) -> jax.Array:
        return jax.nn.softmax(bert.nsp(bert.pool(bert.encoder(*inputs)[0])), axis=-1)[:, 0]

    def forward(params, batch):
        inputs = [batch[name] for name in INPUTS]
        return {'probabilities': module.apply({'params': params}, *inputs, method=probabilities)}

    return forward
