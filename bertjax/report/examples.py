"""The input of the model, with masks or labels, and the predictions for the masks before and after training."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.convert.load import load_pretraining_model
from bertjax.convert.vocabulary import set_embedding_rows
from bertjax.data.features import Features
from bertjax.data.loader import Examples
from bertjax.distill.run import student_params
from bertjax.losses import PRETRAINING
from bertjax.metrics.softmax import softmax
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.pages.page import Section, Token
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.restore import load_pretraining
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.warm_start import initial_params, read_embeddings
from bertjax.report.run_record import Run
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.step import make_forward
from bertjax.workdir.lock import has_checkpoints

_ROWS = 4
_PAIRS = {'nsp': ('B follows A', 'B is from elsewhere'), 'sop': ('in their order', 'swapped')}


def pretraining_examples(examples: Examples, tokenizer: Tokenizer, mode: str) -> Section:
    """Returns the section with the first training examples (rows if packed) and their masks."""
    batch = examples.batch(np.arange(_ROWS))
    legend = {'masked': '[MASK]', 'random': 'a random piece instead', 'unchanged': 'left unchanged'}
    legend |= {'b': 'segment B'} if mode in _PAIRS else {}
    rows = [(_example_label(batch, row, mode), list(_masked_row(batch, row, tokenizer))) for row in range(_ROWS)]
    unit = 'training rows, each of several examples,' if 'sequence_ids' in batch else 'training examples'
    about = f'The first {_ROWS} {unit}, as the model reads them. The hidden piece is shown below each mask.'
    title = 'Pairs and masks' if mode in _PAIRS else 'Masks'
    return Section('examples', title, {'legend': legend, 'rows': rows}, about)


def _example_label(batch: Mapping[str, np.ndarray], row: int, mode: str) -> str:
    packed = 'sequence_ids' in batch
    label = f'row {row} · examples in it: {batch["sequence_ids"][row].max()}' if packed else f'example {row}'
    is_pair = np.atleast_1d(batch['nsp_weights'][row]) > 0  # for each example in the row
    if mode in _PAIRS and is_pair.any():
        label += f' · {", ".join(_PAIRS[mode][answer] for answer in np.atleast_1d(batch["nsp_labels"][row])[is_pair])}'
    predictions = int(batch['masked_weights'][row].sum())
    padding = int((batch['attention_mask'][row] == 0).sum())
    return f'{label} · {predictions} to predict' + (f' · and {padding} × [PAD]' if padding else '')


def _masked_row(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> Iterator[Token]:
    """Yields the tokens of a row of a pre-training batch, without padding."""
    slots = zip(batch['masked_positions'][row], batch['masked_ids'][row], batch['masked_weights'][row], strict=True)
    hidden = {int(position): int(piece) for position, piece, weight in slots if weight}
    for position in range(int(batch['attention_mask'][row].sum())):
        piece, is_second = int(batch['input_ids'][row, position]), bool(batch['segment_ids'][row, position])
        if position in hidden:
            truth = hidden[position]
            color = 'masked' if piece == tokenizer.mask_id else 'unchanged' if piece == truth else 'random'
            title = f'position {position}, id {piece}'
            yield Token(_text(piece, tokenizer), color, title, _text(truth, tokenizer))
        else:
            yield _token(piece, position, is_second, tokenizer)


def _token(piece: int, position: int, is_second: bool, tokenizer: Tokenizer) -> Token:
    is_special = piece in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    color = 'special' if is_special else 'b' if is_second else ''
    return Token(_text(piece, tokenizer), color, f'position {position}, id {piece}')


def _text(piece: int, tokenizer: Tokenizer) -> str:
    return tokenizer.piece_text(tokenizer.pieces[piece])


def task_examples(features: Features, labels: list[str], tokenizer: Tokenizer) -> Section:
    """Returns the section with the first rows of a task's training data and their labels."""
    rows, count = [], min(_ROWS, len(features))
    for row in range(count):
        for choice in range(features.choices):
            number = row * features.choices + choice
            begin, end = features.offsets[number : number + 2]
            label = f'row {row}' + (f', choice {choice}' if features.choices > 1 else '')
            tokens = [
                _token(int(piece), position, position >= features.second[number], tokenizer)
                for position, piece in enumerate(features.tokens[begin:end])
            ]
            rows.append((label + _task_label(features, row, labels), tokens))
    about = f'The first {count} rows of the training data, as the model reads them.'
    legend = {'special': 'special', 'b': 'segment B'}
    return Section('examples', 'Rows', {'legend': legend, 'rows': rows}, about)


def _task_label(features: Features, row: int, labels: list[str]) -> str:
    if 'labels' not in features.row:
        return ''
    label = features.row['labels'][row]
    if np.ndim(label) and not labels:  # a teacher's scores, with a 0 for each missing text
        lengths = features.sequence_lengths[row * features.choices : (row + 1) * features.choices]
        return ' · ' + ', '.join(f'{score:g}' for score in label[: len(label) - np.count_nonzero(lengths == 0)])
    if np.ndim(label):  # a vector of 0 and 1 for several labels
        return ' · ' + (', '.join(labels[i] for i in np.flatnonzero(label)) or 'no label')
    return f' · {labels[int(label)]}' if labels and np.issubdtype(label.dtype, np.integer) else f' · {label:g}'


class MaskPredictions(NamedTuple):
    """The predictions of a model for the masks of a batch: at most P masks in each of B rows.

    Attributes:
      best: int [B, P], the most probable pieces.
      best_probability, true_probability: float64 [B, P], the probabilities of `best` and of the hidden pieces.
    """

    best: np.ndarray
    best_probability: np.ndarray
    true_probability: np.ndarray


def fillings_section(run: Run, heldout: Examples, tokenizer: Tokenizer) -> Section:
    """Compares the predictions of the last checkpoint, or of the export, with those of the initial parameters.

    The initial parameters are computed again, because the oldest checkpoint is usually near the end of the run. Raises
    a UserError if there is no model, or if the model cannot be loaded on this machine.
    """
    settings, batch = run.pretraining_settings(), heldout.batch(np.arange(_ROWS))
    claim_devices()
    model, last_params, last_name = _last_params(run, settings)
    first_params, first_name = _first_params(settings, model, tokenizer)
    forward = jax.jit(make_forward(BertForPreTraining(model), PRETRAINING))
    first, last = (_fill(forward, params, batch, tokenizer) for params in (first_params, last_params))
    is_mask = batch['masked_weights'] > 0
    shares = []
    for name, filling in ((first_name, first), (last_name, last)):
        right = int((filling.best == batch['masked_ids'])[is_mask].sum())
        probability = filling.true_probability[is_mask].mean()
        shares.append((name, f'{right:,} of {is_mask.sum():,}', f'{probability:.4f}'))
    rows = [(f'held-out example {row}', list(_tokens(batch, row, first, last, tokenizer))) for row in range(_ROWS)]
    about = f'Each mask shows the prediction {last_name}; below are the hidden piece and the prediction {first_name}.'
    return Section('fillings', 'Held-out masks, before and after', {'shares': shares, 'rows': rows}, about)


def _last_params(run: Run, settings: PretrainingSettings) -> tuple[BertConfig, Any, str]:
    """Returns the config of the model, its last parameters, and a phrase that names the parameters."""
    exported = run.folder / 'export' / 'hf'
    if has_checkpoints(run.folder) or not exported.is_dir():
        saved = load_pretraining(settings, run.folder)
        return saved.config, saved.params, f'at step {saved.checkpoint.position.step:,}'
    model = settings.model_config(run.config['model']['vocab_size'])
    options = {'scan_layers': model.scan_layers, 'seed': settings.run_seeds.init, 'nsp': model.nsp}
    return model, load_pretraining_model(str(exported), **options).params, 'with the exported weights'


def _first_params(settings: PretrainingSettings, model: BertConfig, tokenizer: Tokenizer) -> tuple[Any, str]:
    """Returns the parameters at the start of the run, and a phrase that names the parameters."""
    copied = student_params(settings, model)
    if copied is not None:
        return copied, 'with blocks of the teacher'
    if settings.init:
        params, name = initial_params(settings, model, tokenizer)[0], 'with the weights of config.init'
    else:
        setup = build_pretraining_setup(settings, model, make_mesh(settings.mesh_axes))
        with mesh_context(setup.mesh):
            params, name = setup.create(settings.run_seeds.init).params, 'at step 0'
    if settings.embeddings:
        params = set_embedding_rows(params, *read_embeddings(settings.embeddings, tokenizer, model.width))
    return params, name


def _fill(forward: Any, params: Any, batch: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> MaskPredictions:
    # The parameters are copied to the host, because TPU kernels outside of a mesh cannot compute with sharded arrays.
    probabilities = softmax(np.asarray(forward(jax.device_get(params), batch)['mlm_logits'], np.float64))
    probability_of = lambda ids: np.take_along_axis(probabilities, ids[..., None], -1)[..., 0]  # noqa: E731
    best = probabilities[..., : tokenizer.vocab_size].argmax(-1)  # a model may have more outputs than pieces
    return MaskPredictions(best, probability_of(best), probability_of(batch['masked_ids']))


def _tokens(
    batch: Mapping[str, np.ndarray], row: int, first: MaskPredictions, last: MaskPredictions, tokenizer: Tokenizer
) -> Iterator[Token]:
    positions, is_mask = batch['masked_positions'][row], batch['masked_weights'][row] > 0
    slots = {int(position): slot for slot, position in enumerate(positions) if is_mask[slot]}
    for position, token in enumerate(_masked_row(batch, row, tokenizer)):
        if position not in slots:
            yield token
            continue
        at = row, slots[position]
        ids = [values[at] for values in (batch['masked_ids'], first.best, last.best)]
        true, first_piece, last_piece = (_text(piece, tokenizer) for piece in ids)
        title = (
            f'input {token.text}; {last_piece} has probability {last.best_probability[at]:.3f}, '
            f'{true} has {last.true_probability[at]:.3f} (was {first.true_probability[at]:.3f})'
        )
        color = 'right' if ids[-1] == ids[0] else 'wrong'  # different pieces may have the same text
        yield Token(last_piece, color, title, f'was {true}\nbefore {first_piece}')
