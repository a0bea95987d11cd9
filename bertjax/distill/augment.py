"""Augments the training rows of a task for a distillation (TinyBERT, arXiv 1909.10351)."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bertjax.convert.load import load_pretraining_model
from bertjax.data.augment import (
    choose_candidates,
    choose_words,
    find_shared_words,
    find_single_piece_words,
    repeat_rows,
    token_positions,
)
from bertjax.data.batch import count_batches, ordinals
from bertjax.data.features import Features, load_or_build
from bertjax.data.length_buckets import choose_lengths
from bertjax.data.loader import global_arrays, local_rows
from bertjax.data.packing_plan import plan_single_rows
from bertjax.distill.objective import HAS_LABEL
from bertjax.distill.settings import DistillationSettings
from bertjax.distill.teacher import Teacher, check_inputs, check_vocabulary, teacher_config_changes
from bertjax.errors import UserError
from bertjax.finetune.task_data import TaskData
from bertjax.finetune.task_model import prepare
from bertjax.losses import PRETRAINING
from bertjax.model.bert import BertForPreTraining
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.distributed import primary_first
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.progress import show_progress
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.health.profiler import profiled_steps
from bertjax.training.step import make_forward
from bertjax.workdir.resolve_path import huggingface_directory

_MODEL_KEY = 'distill.augment_model'

PredictWords = Callable[[Any, Mapping[str, jax.Array]], jax.Array]


def add_augmented(data: TaskData, distill: DistillationSettings, folder: pathlib.Path, mesh: Mesh) -> None:
    """Adds augmented rows to the training split of `data`, as config.distill.augment specifies.

    Raises a UserError if the masked language model does not exist or does not fit the task, if the vocabulary has too
    few words, if a stage of the distillation would have no steps, or if config.profile names steps after the last one;
    also see `prepare`.
    """
    settings = data.settings
    with primary_first():
        masked_lm = _load_masked_lm(distill, data, mesh)
        # The mistakes that `prepare` and the checks of the steps find are reported before the slow augmentation.
        prepare(data, mesh, length_count=1, selection_key=settings.selection_key)
        split = data.split('train', training=True)
    plain, fixed = split.features, data.task.fixed_tokens(split.records, split.features, data.tokenizer)
    options = {'times': distill.augment + 1, 'seed': settings.run_seeds.data}
    options |= {'probability': distill.augment_probability, 'count': distill.augment_candidates}
    batches = count_batches(len(plain) * (distill.augment + 1), settings.batch_size)
    total = settings.total_steps(batches)
    profiled_steps(settings.profile, total)
    if distill.has_two_stages:
        distill.intermediate_steps(total, batches)
    key = ('augmented', plain.fingerprint, masked_lm.fingerprint, tuple(options.items()))
    if fixed.any():
        key += (hashlib.sha256(fixed.tobytes()).hexdigest(),)

    def make() -> Features:
        copies = f'{distill.augment} augmented copies of each of {len(plain):,} rows'
        print(f'train: adding {copies} with {masked_lm.directory}', flush=True)
        return augment_split(plain, fixed, data.tokenizer, masked_lm, batch_size=settings.eval_batch_size, **options)

    data.replace_features('train', load_or_build(folder / 'features', key, make))


def _load_masked_lm(distill: DistillationSettings, data: TaskData, mesh: Mesh) -> Teacher:
    directory = huggingface_directory(distill.augment_model or distill.teacher, f'config.{_MODEL_KEY}')
    check_vocabulary(directory, data.tokenizer, _MODEL_KEY)
    if (words := int(_is_word(data.tokenizer).sum())) <= distill.augment_candidates:
        expected = f'fewer than the {words:,} single-piece words of the vocabulary'
        fix = 'lower it, or use another vocabulary'
        raise UserError('config.distill.augment_candidates', str(distill.augment_candidates), expected, fix)
    imported = load_pretraining_model(directory, nsp=False, **teacher_config_changes('float32'))
    masked_lm = Teacher(directory, BertForPreTraining(imported.config), imported, mesh, _MODEL_KEY)
    masked_lm.check_head(('mlm',), 'a masked language model, which predicts the replacements')
    check_inputs(directory, imported.config, data.settings.seq_len, key=_MODEL_KEY)
    return masked_lm


def _is_word(tokenizer: Tokenizer) -> np.ndarray:
    """Returns bool [V], True for pieces that start a word, except special pieces."""
    words = ~np.asarray(tokenizer.continues_word)
    words[tokenizer.special_ids] = False
    return words


def augment_split(
    features: Features,
    fixed: np.ndarray,
    tokenizer: Tokenizer,
    masked_lm: Teacher,
    *,
    times: int,
    probability: float,
    count: int,
    seed: int,
    batch_size: int,
) -> Features:
    """Returns each row followed by `times` - 1 copies in which some words are replaced; see data/augment.py.

    In a copy of a multiple-choice row, the common beginning of all choices gets the same replacements.

    Args:
      fixed: bool [T], the tokens that are never replaced; see `Task.fixed_tokens`.
      masked_lm: A masked language model with the vocabulary of `tokenizer`. Its batches have `batch_size` sequences.
      times: The number of rows for each original row, including the original row.
      probability: The probability that a word of one piece is replaced.
      count: The number of candidates for a replacement, the most likely words other than the original word.
    """
    words = find_single_piece_words(features, tokenizer.special_ids, tokenizer.continues_word) & ~fixed
    boundaries = features.offsets[features.choices : -1 : features.choices]  # the starts of the rows after the first
    words = np.concatenate([np.tile(row, times) for row in np.split(words, boundaries)])
    rows = repeat_rows(features, times, HAS_LABEL)
    chosen = choose_words(rows, words, seed=seed, probability=probability, mark=HAS_LABEL)
    repeats, originals = find_shared_words(rows, words)
    chosen[repeats] = chosen[originals]
    tokens = rows.tokens.copy()
    sequence, position = token_positions(rows)
    with show_progress('replacing words', int(chosen.sum()), lines=True) as advance:
        replacements = _is_word(tokenizer)
        replacements[features.tokens[fixed]] = False  # fixed tokens, such as entity markers, must not occur elsewhere
        predict = _make_predictor(masked_lm, replacements, count)
        for where, candidates in _candidates(rows, chosen, tokenizer, masked_lm, predict, batch_size):
            tokens[where] = choose_candidates(
                candidates, rows.tokens[where], sequence[where], position[where], seed=seed
            )
            advance(len(where))
    tokens[repeats] = tokens[originals]
    added = (times - 1) * len(features)
    note = f'{added:,} augmented rows in addition to {len(features):,}, with {chosen.sum():,} replaced words'
    return dataclasses.replace(rows, tokens=tokens, notes=(*rows.notes, note))


def _candidates(
    rows: Features, chosen: np.ndarray, tokenizer: Tokenizer, masked_lm: Teacher, predict: PredictWords, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (indices in `rows.tokens` [M], the most likely pieces [M, count + 1]) for batches of chosen tokens.

    The pieces are predicted from the sequence with all its chosen tokens masked.
    """
    number, _ = token_positions(rows)
    counts = np.bincount(number[chosen], minlength=len(rows.second))
    masked = np.where(chosen, np.int32(tokenizer.mask_id), rows.tokens)
    # One row for each sequence, even in multiple-choice tasks.
    single = dataclasses.replace(
        rows, tokens=masked, choices=1, record=np.arange(len(counts)), row={}, token={'token_chosen': chosen}
    )
    affected = single.take(np.flatnonzero(counts))
    if not len(affected):
        return
    shards, sharding = row_shards(masked_lm.mesh), batch_sharding(masked_lm.mesh)
    lengths = choose_lengths(affected.lengths, count=4, max_length=masked_lm.config.max_positions)
    size = -(-batch_size // shards) * shards
    local = local_rows(sharding, size)
    for indices, length in plan_single_rows(affected.lengths, lengths, size).batches():
        batch = affected.batch(indices, length, tokenizer.pad_id)
        row, position = np.nonzero(batch.pop('token_chosen'))
        slot = ordinals(np.bincount(row))
        batch['masked_positions'] = np.zeros((len(indices), counts.max()), np.int32)
        batch['masked_positions'][row, slot] = position
        with mesh_context(masked_lm.mesh):
            arrays = global_arrays({name: x[local] for name, x in batch.items()}, sharding, size)
            words = np.asarray(predict(masked_lm.params, arrays))  # [B, P, count + 1]
        yield rows.offsets[affected.record[indices[row]]] + position, words[row, slot]


def _make_predictor(masked_lm: Teacher, replacements: np.ndarray, count: int) -> PredictWords:
    """Returns a function (parameters, batch) -> int32 [B, P, count + 1], the most likely pieces at masked positions.

    `replacements`, bool [V], marks the pieces that may be returned.
    """
    words = np.pad(replacements, (0, masked_lm.config.padded_vocab_size - len(replacements)))
    forward = make_forward(masked_lm.module, PRETRAINING)

    @functools.partial(jax.jit, out_shardings=replicated(masked_lm.mesh))  # every process needs the words of all rows
    def predict(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        logits = forward(params, batch)['mlm_logits']  # [B, P, V]
        return jax.lax.top_k(jnp.where(words, logits, NEGATIVE), count + 1)[1]

    return predict
