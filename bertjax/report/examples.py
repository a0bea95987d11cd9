"""The input of the model: pre-training examples with pairs and masks, or rows of a task with labels."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.data.features import Features
from bertjax.pages.page import Section, Token
from bertjax.pretrain.examples import PhaseExamples
from bertjax.text.tokenizer import Tokenizer

_ROWS = 4
_PAIRS = {'nsp': ('B follows A', 'B is from elsewhere'), 'sop': ('in their order', 'swapped')}


def pretraining_examples(examples: PhaseExamples, tokenizer: Tokenizer, mode: str) -> Section:
    """Returns the section with the first training examples and their masks. With packing, it shows the first rows."""
    batch = examples.batch(np.arange(_ROWS))
    legend = {'masked': '[MASK]', 'random': 'a random piece instead', 'unchanged': 'left unchanged'}
    legend |= {'b': 'segment B'} if mode in _PAIRS else {}
    rows = [(_example_label(batch, row, mode), list(masked_row(batch, row, tokenizer))) for row in range(_ROWS)]
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


def masked_row(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> Iterator[Token]:
    """Yields the tokens of a row of a pre-training batch, without padding."""
    slots = zip(batch['masked_positions'][row], batch['masked_ids'][row], batch['masked_weights'][row], strict=True)
    hidden = {int(position): int(piece) for position, piece, weight in slots if weight}
    for position in range(int(batch['attention_mask'][row].sum())):
        piece, is_second = int(batch['input_ids'][row, position]), bool(batch['segment_ids'][row, position])
        if position in hidden:
            truth = hidden[position]
            color = 'masked' if piece == tokenizer.mask_id else 'unchanged' if piece == truth else 'random'
            title = f'position {position}, id {piece}'
            yield Token(tokenizer.pieces[piece], color, title, tokenizer.pieces[truth])
        else:
            yield _token(piece, position, is_second, tokenizer)


def _token(piece: int, position: int, is_second: bool, tokenizer: Tokenizer) -> Token:
    is_special = piece in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    color = 'special' if is_special else 'b' if is_second else ''
    return Token(tokenizer.pieces[piece], color, f'position {position}, id {piece}')


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
            rows.append((label + _task_label(features.row, row, labels), tokens))
    about = f'The first {count} rows of the training data, as the model reads them.'
    legend = {'special': 'special', 'b': 'segment B'}
    return Section('examples', 'Rows', {'legend': legend, 'rows': rows}, about)


def _task_label(row: Mapping[str, Any], number: int, labels: list[str]) -> str:
    if 'labels' not in row:
        return ''
    label = row['labels'][number]
    if np.ndim(label):  # a vector of 0 and 1 for several labels
        return ' · ' + (', '.join(labels[i] for i in np.flatnonzero(label)) or 'no label')
    return f' · {labels[int(label)]}' if labels and np.issubdtype(label.dtype, np.integer) else f' · {label:g}'
