"""The data of a task that is distilled: read as for a fine-tuning, with rows that are made up beside them."""

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
    find_single_piece_words,
    repeat_rows,
    take_rows,
    token_positions,
)
from bertjax.data.features import Features, load_or_build
from bertjax.data.length_buckets import choose_lengths, sorted_batches
from bertjax.data.loader import global_arrays, local_rows
from bertjax.distill.objective import HAS_OWN_LABEL
from bertjax.distill.run import student_encoder
from bertjax.distill.settings import DistillationSettings
from bertjax.distill.teacher import Teacher, check_vocabulary, teacher_config_changes, teacher_directory
from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TaskData, data_from_source, encoder_of, learned_data
from bertjax.losses import PRETRAINING
from bertjax.model.bert import BertForPreTraining
from bertjax.model.layers import NEGATIVE
from bertjax.parallel.distributed import primary_first
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.progress import show_progress
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.train.step import make_forward
from bertjax.workdir.resolve_path import huggingface_directory

_MODEL = 'distill.augment_model'
_WORDS = 'token_words'  # beside the arrays of a task, while its rows are repeated

PredictWords = Callable[[Any, Mapping[str, jax.Array]], jax.Array]


def distillation_data(settings: FinetuningSettings, distill: DistillationSettings, folder: pathlib.Path) -> TaskData:
    """The task's data, with the encoder of the student.

    Raises:
      UserError: no such teacher, more blocks than it has, malformed records.
    """
    if distill.student_init == 'init':
        return data_from_source(settings, folder)
    directory = teacher_directory(distill.teacher)
    tokenizer = load_tokenizer(settings.tokenizer or directory)
    encoder = student_encoder(distill, encoder_of(settings, directory))
    return learned_data(TaskData(settings, folder, tokenizer, encoder, directory))


def add_augmented(data: TaskData, distill: DistillationSettings, folder: pathlib.Path, mesh: Mesh) -> None:
    """Gives the training split of `data` rows that are made up, as config.distill.augment says.

    Raises:
      UserError: no masked language model to make them up with, one that knows fewer positions than a row may have, or a
        vocabulary without as many words.
    """
    settings = data.settings
    with primary_first():
        model = _masked_language_model(distill, data, mesh)
        split = data.split('train', training=True)
    plain, stays = split.features, data.task.fixed_tokens(split.records, split.features, data.tokenizer)
    may_stand = _is_word(data.tokenizer)
    may_stand[plain.tokens[stays]] = False
    _check_count(distill.augment_candidates, int(may_stand.sum()))
    options = {'times': distill.augment + 1, 'seed': settings.run_seeds.data}
    options |= {'probability': distill.augment_probability, 'count': distill.augment_candidates}
    key = ('augmented', plain.fingerprint, model.fingerprint, tuple(options.items()))
    if stays.any():
        key += (hashlib.sha256(stays.tobytes()).hexdigest(),)

    def make() -> Features:
        print(f'train: making up {distill.augment} rows of each of {len(plain):,} with {model.directory}', flush=True)
        return augment_split(plain, stays, data.tokenizer, model, batch_size=settings.eval_batch_size, **options)

    data.replace_features('train', load_or_build(folder / 'features', key, make))


def _masked_language_model(distill: DistillationSettings, data: TaskData, mesh: Mesh) -> Teacher:
    directory = huggingface_directory(distill.augment_model or distill.teacher, f'config.{_MODEL}')
    check_vocabulary(directory, data.tokenizer, _MODEL)
    _check_count(distill.augment_candidates, int(_is_word(data.tokenizer).sum()))
    imported = load_pretraining_model(directory, nsp=False, **teacher_config_changes('float32'))
    model = Teacher(directory, BertForPreTraining(imported.config), imported, mesh, _MODEL)
    model.check_head(('mlm',), 'a masked language model, to say which words may stand for others')
    model.check_length(data.settings.seq_len)
    return model


def _check_count(candidates: int, words: int) -> None:
    if words <= candidates:
        found, expected = str(candidates), f'fewer than the {words:,} words that are one piece'
        raise UserError('config.distill.augment_candidates', found, expected, 'lower it, or take another vocabulary')


def _is_word(tokenizer: Tokenizer) -> np.ndarray:
    """bool [V]: the piece begins a word, which may be all of it."""
    words = ~np.asarray(tokenizer.continues_word)
    words[tokenizer.special_ids] = False
    return words


def augment_split(
    features: Features,
    stays: np.ndarray,
    tokenizer: Tokenizer,
    model: Teacher,
    *,
    times: int,
    probability: float,
    count: int,
    seed: int,
    batch_size: int,
) -> Features:
    """Each row, and `times` - 1 copies of it in which some words have become others: see data/augment.py.

    Args:
      features: of the training records.
      stays: bool [T], the tokens that are never others, see Task.fixed_tokens.
      tokenizer: of the task.
      model: a masked language model with its vocabulary.
      times: rows in place of one.
      probability: of each word of one piece.
      count: the likeliest words that it may become.
      seed: what each copy is a function of, with its number.
      batch_size: sequences at a time.
    """
    words = find_single_piece_words(features, tokenizer.special_ids, tokenizer.continues_word) & ~stays
    rows = repeat_rows(dataclasses.replace(features, token={**features.token, _WORDS: words}), times, HAS_OWN_LABEL)
    words = rows.token[_WORDS]
    rows = dataclasses.replace(rows, token={name: x for name, x in rows.token.items() if name != _WORDS})
    chosen = choose_words(rows, words, seed=seed, probability=probability, mark=HAS_OWN_LABEL)
    tokens = rows.tokens.copy()
    sequence, place = token_positions(rows)
    with show_progress('words become others', int(chosen.sum()), lines=True) as advance:
        ask = _asking(model, tokenizer, np.unique(features.tokens[stays]), count)  # nor do other words become marks
        for at, candidates in _candidates(rows, chosen, tokenizer, model, ask, batch_size):
            tokens[at] = choose_candidates(candidates, rows.tokens[at], sequence[at], place[at], seed=seed)
            advance(len(at))
    made = (times - 1) * len(features)
    note = f'{made:,} rows are made up beside {len(features):,}: {chosen.sum():,} words of them are others'
    return dataclasses.replace(rows, tokens=tokens, notes=(*rows.notes, note))


def _candidates(
    rows: Features, chosen: np.ndarray, tokenizer: Tokenizer, model: Teacher, ask: PredictWords, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For the chosen tokens, batch by batch: where they are in `tokens` [M], and the words that `ask` gives for them
    [M, count + 1], with all chosen ones of their sequence masked."""
    number, _ = token_positions(rows)
    counts = np.bincount(number[chosen], minlength=len(rows.second))
    masked = np.where(chosen, np.int32(tokenizer.mask_id), rows.tokens)
    every = dataclasses.replace(rows, tokens=masked, choices=1, record=np.arange(len(counts)), row={}, token={})
    some = take_rows(every, np.flatnonzero(counts))  # sequences by themselves, whatever the task makes of them
    if not len(some):
        return
    shards, sharding = row_shards(model.mesh), batch_sharding(model.mesh)
    lengths = choose_lengths(some.lengths, count=4, longest=model.config.max_positions)
    size = -(-batch_size // shards) * shards
    mine = local_rows(sharding, size)
    for found, length in sorted_batches(some, batch_size=size, shapes=lengths):
        sequences = some.record[found[found >= 0]]
        where = [np.flatnonzero(chosen[slice(*rows.offsets[n : n + 2])]) for n in sequences]
        positions = np.zeros((len(found), counts.max()), np.int32)
        for row, x in enumerate(where):  # the empty places of a batch are its last
            positions[row, : len(x)] = x
        batch = {**some.batch(found, length, tokenizer.pad_id), 'masked_positions': positions}
        with mesh_context(model.mesh):
            arrays = global_arrays({name: x[mine] for name, x in batch.items()}, sharding, size)
            words = np.asarray(ask(model.params, arrays))  # [B, P, count + 1]
        at = [rows.offsets[n] + x for n, x in zip(sequences, where, strict=True)]
        yield np.concatenate(at), np.concatenate([words[row, : len(x)] for row, x in enumerate(where)])


def _asking(model: Teacher, tokenizer: Tokenizer, never: np.ndarray, count: int) -> PredictWords:
    """(parameters, batch) -> int32 [B, P, count + 1]: the likeliest words of one piece at masked positions, but for
    the ids `never`."""
    words = np.zeros(model.config.padded_vocab_size, bool)
    words[: tokenizer.vocab_size] = _is_word(tokenizer)
    words[never] = False
    forward = make_forward(model.model, PRETRAINING)

    @functools.partial(jax.jit, out_shardings=replicated(model.mesh))  # every process needs all of them
    def ask(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        logits = forward(params, batch)['mlm_logits']  # [B, P, V]
        return jax.lax.top_k(jnp.where(words, logits, NEGATIVE), count + 1)[1]

    return ask
