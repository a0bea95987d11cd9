"""The names, shapes and dtypes of a pre-training batch.

| name             | shape  | dtype   | content                                                                     |
|------------------|--------|---------|-----------------------------------------------------------------------------|
| input_ids        | [B, S] | int32   | token ids with masks applied, `pad_id` in padding                           |
| segment_ids      | [B, S] | int32   | 0 for [CLS] A [SEP] and padding, 1 for B [SEP]                              |
| attention_mask   | [B, S] | int32   | 1 for tokens, 0 for padding                                                 |
| masked_positions | [B, P] | int32   | positions to predict, ascending, then 0 where unused                        |
| masked_ids       | [B, P] | int32   | the original ids at these positions, 0 where unused                         |
| masked_weights   | [B, P] | float32 | 1 where used, 0 where unused                                                |
| nsp_labels       | [B]    | int32   | 0 if B follows A; 1 if B is from elsewhere, or A and B are swapped          |
| nsp_weights      | [B]    | float32 | 1, or 0 where the row has no pair to classify                               |

If the text defines segment types, `segment_ids` contains these types (data/rows.py).

If `config.masking.causal_share` is above 0, a training batch has one more array:

| name             | shape  | dtype   | content                                                                     |
|------------------|--------|---------|-----------------------------------------------------------------------------|
| causal           | [B, S] | int32   | 1 for the tokens of a causal example (they attend only to the left), else 0 |

A packed row contains several examples, one after the other, each with its own segments (data/packing.py).
`masked_positions` count from the start of the row, and P is the limit for the whole row. A packed batch also has the
first three arrays below. Its NSP arrays are [B, E], where E = `max_examples(S)`:

| name             | shape  | dtype   | content                                                                     |
|------------------|--------|---------|-----------------------------------------------------------------------------|
| sequence_ids     | [B, S] | int32   | the index of a token's example in its row, from 1; 0 for padding            |
| position_ids     | [B, S] | int32   | the position of a token in its example, from 0; 0 for padding               |
| cls_positions    | [B, E] | int32   | the first position of each example, 0 where unused                          |
| nsp_labels       | [B, E] | int32   | as above, for each example                                                  |
| nsp_weights      | [B, E] | float32 | as above, 0 where unused                                                    |
"""

import numpy as np

BatchSpec = dict[str, tuple[tuple[int, ...], np.dtype]]


def count_batches(rows: int, batch_size: int) -> int:
    """Returns the number of batches in an epoch with `rows` rows."""
    return -(-rows // batch_size)


def max_examples(seq_len: int) -> int:
    """Returns E, the maximum number of examples in a packed row of S = `seq_len`: one per 16 positions, at least 2."""
    return max(2, seq_len // 16)


def pretraining_batch_spec(
    rows: int, seq_len: int, max_predictions: int, packed: bool = False, causal: bool = False
) -> BatchSpec:
    """Returns the shape and dtype of each array of a batch, with B = `rows`, S = `seq_len`, P = `max_predictions`."""
    tokens, predictions = (rows, seq_len), (rows, max_predictions)
    examples = (rows, max_examples(seq_len)) if packed else (rows,)
    shapes = {
        **dict.fromkeys(('input_ids', 'segment_ids', 'attention_mask'), tokens),
        **dict.fromkeys(('masked_positions', 'masked_ids', 'masked_weights'), predictions),
        **dict.fromkeys(('nsp_labels', 'nsp_weights'), examples),
        **({'causal': tokens} if causal else {}),
        **({'sequence_ids': tokens, 'position_ids': tokens, 'cls_positions': examples} if packed else {}),
    }
    int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
    return {name: (shape, float32 if name.endswith('weights') else int32) for name, shape in shapes.items()}


def padding_rows(spec: BatchSpec, pad_id: int = 0) -> dict[str, np.ndarray]:
    """Returns rows without effect on a loss: `input_ids` is `pad_id` everywhere, and all other arrays are 0."""
    rows = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
    rows['input_ids'].fill(pad_id)
    return rows


def ordinals(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... counts[0] - 1, then 0, 1, ... counts[1] - 1, and so on, as int32."""
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
