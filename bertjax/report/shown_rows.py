"""What really goes in: rows of pre-training with their pairs and masks, rows of a task with their labels."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from bertjax.data.features import Features
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.pages.parts import Token
from bertjax.pretrain.examples import Examples
from bertjax.text.tokenizer import Tokenizer

_ROWS = 4
_PAIRS = {'nsp': ('B follows A', 'B is from elsewhere'), 'sop': ('in their order', 'swapped')}


def pretraining_rows(examples: Examples, tokenizer: Tokenizer, mode: str) -> Section:
    """The first examples of training, or the first packed rows of them, masked as they are."""
    batch = examples.batch(np.arange(_ROWS))
    rows = [
        parts.tokens(masked_row(batch, row, tokenizer), _label(batch, row, mode, tokenizer)) for row in range(_ROWS)
    ]
    legend = {'masked': '[MASK]', 'random': 'a random piece instead', 'kept': 'left as it was'}
    legend |= {'b': 'segment B'} if mode in _PAIRS else {}
    what = f'The first {_ROWS} ' + (
        'rows of training, of several examples each' if 'sequence_ids' in batch else 'examples of training'
    )
    about = f'{what}, as they go in. Below a position to predict stands what was there.'
    return Section('examples', 'Pairs and masks' if mode in _PAIRS else 'Masks', [parts.legend(legend), *rows], about)


def _label(batch: Mapping[str, np.ndarray], row: int, mode: str, tokenizer: Tokenizer) -> str:
    packed = 'sequence_ids' in batch
    text = f'row {row} · examples in it: {batch["sequence_ids"][row].max()}' if packed else f'example {row}'
    judged = np.atleast_1d(batch['nsp_weights'][row]) > 0  # of each of its examples
    if mode in _PAIRS and judged.any():
        text += f' · {", ".join(_PAIRS[mode][label] for label in np.atleast_1d(batch["nsp_labels"][row])[judged])}'
    predicted = int(batch['masked_weights'][row].sum())
    padding = int((batch['attention_mask'][row] == 0).sum())
    return f'{text} · {predicted} to predict' + (f' · and {padding} × [PAD]' if padding else '')


def masked_row(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> Iterator[Token]:
    """The tokens of a row of a batch of pre-training."""
    slots = zip(batch['masked_positions'][row], batch['masked_ids'][row], batch['masked_weights'][row], strict=True)
    hidden = {int(at): int(was) for at, was, weight in slots if weight}
    for at in range(int(batch['attention_mask'][row].sum())):
        piece, second = int(batch['input_ids'][row, at]), bool(batch['segment_ids'][row, at])
        text = tokenizer.pieces[piece]
        if at in hidden:
            kind = 'masked' if piece == tokenizer.mask_id else 'kept' if piece == hidden[at] else 'random'
            yield Token(text, kind, f'position {at}, id {piece}', tokenizer.pieces[hidden[at]])
        else:
            yield _token(text, piece, at, second, tokenizer)


def _token(text: str, piece: int, at: int, second: bool, tokenizer: Tokenizer) -> Token:
    special = piece in (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    return Token(text, 'special' if special else 'b' if second else '', f'position {at}, id {piece}')


def task_rows(features: Features, labels: list[str], tokenizer: Tokenizer) -> Section:
    """The first rows of a task's training data, with their labels."""
    body: list[Markup] = []
    for row in range(min(_ROWS, len(features))):
        for choice in range(features.choices):
            number = row * features.choices + choice
            begin, end = features.offsets[number : number + 2]
            ids = features.tokens[begin:end].tolist()
            pieces = (
                _token(tokenizer.pieces[piece], piece, at, at >= features.second[number], tokenizer)
                for at, piece in enumerate(ids)
            )
            which = f'row {row}' + (f', choice {choice}' if features.choices > 1 else '')
            body.append(parts.tokens(pieces, f'{which}{_label_of(features.row, row, labels)}'))
    about = f'The first {min(_ROWS, len(features))} rows of the training data, as they go in.'
    return Section('examples', 'Rows', [parts.legend({'special': 'special', 'b': 'segment B'}), *body], about)


def _label_of(row: Mapping[str, Any], number: int, labels: list[str]) -> str:
    if 'labels' not in row:
        return ''
    label = row['labels'][number]
    if np.ndim(label):  # several
        return ' · ' + (', '.join(labels[i] for i in np.flatnonzero(label)) or 'no label')
    return f' · {labels[int(label)]}' if labels and np.issubdtype(label.dtype, np.integer) else f' · {label:g}'
