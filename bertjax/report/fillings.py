"""The same held-out masks, filled before and after the training."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.convert.load import load_pretraining_model
from bertjax.convert.vocabulary import with_embeddings
from bertjax.data.loader import Examples
from bertjax.distill.run import student_params
from bertjax.losses import PRETRAINING
from bertjax.metrics.softmax import softmax
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.pages.parts import Token
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.embeddings import read_embeddings
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.warm_start import initial_params
from bertjax.report.run_record import Run, quiet
from bertjax.report.shown_rows import masked_row
from bertjax.text.tokenizer import Tokenizer
from bertjax.train.step import make_forward
from bertjax.workdir.restore_run import load_pretraining

_ROWS = 4


@dataclasses.dataclass(frozen=True)
class Filled:
    """What a model puts in the masked positions: `best` int [B, P] with its `probability` [B, P], and that of what was
    there, `of_true` [B, P]."""

    best: np.ndarray
    probability: np.ndarray
    of_true: np.ndarray


def fillings(run: Run, heldout: Examples, tokenizer: Tokenizer) -> Section:
    """Of a pre-training with a checkpoint or an export.

    Before is the state of step 0, made again as the run made it: drawn, the weights of config.init, or blocks of its
    teacher. Which checkpoint is the oldest that was kept is an accident, and mostly near the end.

    Raises:
      UserError: no model is there, or one that cannot be loaded here.
    """
    settings, batch = run.pretraining_settings(), heldout.batch(np.arange(_ROWS))
    claim_devices()
    with quiet():
        model, after, when = _trained(run, settings, tokenizer)
        before, begun = _begun(settings, model, tokenizer)
    forward = jax.jit(make_forward(BertForPreTraining(model), PRETRAINING))
    then, now = (_fill(forward, params, batch) for params in (before, after))
    weights = batch['masked_weights'] > 0
    count, shares = int(weights.sum()), []
    for name, filled in ((begun, then), (when, now)):
        right = int((filled.best == batch['masked_ids'])[weights].sum())
        shares.append((name, f'{right:,} of {count:,}', f'{filled.of_true[weights].mean():.4f}'))
    rows = [parts.tokens(_tokens(batch, row, then, now, tokenizer), f'held-out example {row}') for row in range(_ROWS)]
    about = (
        f'What the model puts in the place of what is hidden, {when}; below, what was there, and what it put {begun}.'
    )
    table = parts.table(['', 'filled rightly', 'mean probability of what was there'], shares)
    legend = parts.legend({'right': 'filled rightly', 'wrong': 'filled with something else'})
    return Section('fillings', 'Held-out masks, before and after', [table, legend, *rows], about)


def _trained(run: Run, settings: PretrainingSettings, tokenizer: Tokenizer) -> tuple[BertConfig, Any, str]:
    """The model with its parameters, and when they were that."""
    exported = run.folder / 'export' / 'hf'
    if run.checkpointed or not exported.is_dir():
        saved = load_pretraining(settings, run.folder)
        return saved.config, saved.params, f'at step {saved.saved.position.step:,}'
    model = settings.model_config(tokenizer.vocab_size)
    return model, _imported(exported, model, settings), 'as exported'


def _begun(settings: PretrainingSettings, model: BertConfig, tokenizer: Tokenizer) -> tuple[Any, str]:
    """The parameters with which the run began, and what they are."""
    copied = student_params(settings, model)
    if copied is not None:
        return copied, 'as blocks of its teacher'
    if settings.init:
        params, begun = initial_params(settings, model, tokenizer)[0], 'in config.init'
    else:
        setup = build_pretraining_setup(settings, model, make_mesh(settings.mesh_axes))
        with mesh_context(setup.mesh):
            params, begun = setup.create(settings.run_seeds.init).params, 'at step 0'
    if settings.embeddings:
        given = read_embeddings(settings.embeddings, tokenizer, model.width)
        params = with_embeddings(params, given.rows, given.matrix)
    return params, begun


def _imported(directory: pathlib.Path, model: BertConfig, settings: PretrainingSettings) -> Any:
    return load_pretraining_model(
        str(directory), scan_layers=model.scan_layers, seed=settings.run_seeds.init, nsp=model.nsp
    ).params


def _fill(forward: Any, params: Any, batch: Mapping[str, np.ndarray]) -> Filled:
    shares = softmax(np.asarray(forward(params, batch)['mlm_logits'], np.float64))
    at = lambda ids: np.take_along_axis(shares, ids[..., None], -1)[..., 0]  # noqa: E731
    best = shares.argmax(-1)
    return Filled(best, at(best), at(batch['masked_ids']))


def _tokens(
    batch: Mapping[str, np.ndarray], row: int, before: Filled, after: Filled, tokenizer: Tokenizer
) -> Iterator[Token]:
    slots = {int(at): p for p, at in enumerate(batch['masked_positions'][row]) if batch['masked_weights'][row, p]}
    for at, token in enumerate(masked_row(batch, row, tokenizer)):
        if at not in slots:
            yield token
            continue
        p, pieces = slots[at], tokenizer.pieces
        was, now, then = int(batch['masked_ids'][row, p]), int(after.best[row, p]), int(before.best[row, p])
        title = f'input {token.text}; {pieces[now]} has probability {after.probability[row, p]:.3f}, '
        title += f'{pieces[was]} has {after.of_true[row, p]:.3f}; before: {before.of_true[row, p]:.3f}'
        under = f'was {pieces[was]}\nbefore {pieces[then]}'
        yield Token(pieces[now], 'right' if now == was else 'wrong', title, under)
