"""Names, shapes and dtypes of a pre-training batch: the one place that says them.

| name             | shape  | dtype   | what                                                                        |
|------------------|--------|---------|-----------------------------------------------------------------------------|
| input_ids        | [B, S] | int32   | token ids with masks applied, `pad_id` in padding                           |
| segment_ids      | [B, S] | int32   | 0 for [CLS] A [SEP] and padding, 1 for B [SEP]                              |
| attention_mask   | [B, S] | int32   | 1 for tokens, 0 for padding                                                 |
| masked_positions | [B, P] | int32   | positions to predict, ascending, then 0 where unused                        |
| masked_ids       | [B, P] | int32   | the ids that stood there, 0 where unused                                    |
| masked_weights   | [B, P] | float32 | 1 where used, 0 where not                                                   |
| nsp_labels       | [B]    | int32   | 0 B follows A (or A, B in order), 1 B is from elsewhere (or swapped)        |
| nsp_weights      | [B]    | float32 | 1, or 0 where the row has no pair to judge                                  |

Packed, a row holds several examples one after the other (data/packed.py). Segments begin anew in each of them,
`masked_positions` are those of the row, and P is for all of them together. There is more to say, with E as in
`most_examples`:

| name             | shape  | dtype   | what                                                                        |
|------------------|--------|---------|-----------------------------------------------------------------------------|
| sequence_ids     | [B, S] | int32   | which example of the row a token belongs to, from 1; 0 for padding          |
| position_ids     | [B, S] | int32   | a token's place in its example, from 0; 0 for padding                       |
| cls_positions    | [B, E] | int32   | where each example begins, 0 where unused                                   |
| nsp_labels       | [B, E] | int32   | as above, of each example                                                   |
| nsp_weights      | [B, E] | float32 | as above, 0 where unused                                                    |
"""

from collections.abc import Callable

import numpy as np

BatchSpec = dict[str, tuple[tuple[int, ...], np.dtype]]

# Positions that are made at once. With more, intermediate arrays leave a core's cache, and their memory goes back to
# the system and is asked for again each time: 512 rows of 512 take 1.7 times as long as four times 128.
_PIECE = 1 << 16


def most_examples(seq_len: int) -> int:
    """E, the most examples that a row of S = `seq_len` is packed with: of short texts 16 positions each fill it."""
    return max(2, seq_len // 16)


def pretraining_batch_spec(rows: int, seq_len: int, max_predictions: int, packed: bool = False) -> BatchSpec:
    """Shape and dtype of each array of a batch of `rows` rows (B), S = `seq_len`, P = `max_predictions`."""
    tokens, predictions = (rows, seq_len), (rows, max_predictions)
    examples = (rows, most_examples(seq_len)) if packed else (rows,)
    more = {
        'sequence_ids': (tokens, np.dtype(np.int32)),
        'position_ids': (tokens, np.dtype(np.int32)),
        'cls_positions': (examples, np.dtype(np.int32)),
    }
    return {
        'input_ids': (tokens, np.dtype(np.int32)),
        'segment_ids': (tokens, np.dtype(np.int32)),
        'attention_mask': (tokens, np.dtype(np.int32)),
        'masked_positions': (predictions, np.dtype(np.int32)),
        'masked_ids': (predictions, np.dtype(np.int32)),
        'masked_weights': (predictions, np.dtype(np.float32)),
        'nsp_labels': (examples, np.dtype(np.int32)),
        'nsp_weights': (examples, np.dtype(np.float32)),
        **(more if packed else {}),
    }


def padding_rows(spec: BatchSpec, pad_id: int = 0) -> dict[str, np.ndarray]:
    """Rows that count for nothing: all weights and the attention mask 0, every token `pad_id`."""
    rows = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
    rows['input_ids'].fill(pad_id)
    return rows


def in_pieces(
    make: Callable[[np.ndarray], dict[str, np.ndarray]], indices: np.ndarray, seq_len: int
) -> dict[str, np.ndarray]:
    """What `make` makes of `indices`, rows of S = `seq_len` that do not depend on one another: some at a time."""
    size = max(1, _PIECE // seq_len)
    if len(indices) <= size:
        return make(indices)
    pieces = [make(indices[i : i + size]) for i in range(0, len(indices), size)]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
