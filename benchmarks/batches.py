"""Batches of random ids for programs that time steps."""

import numpy as np

from bertjax.data.batch import pretraining_batch_spec


def random_batch(
    rows: int, seq_len: int, predictions: int, vocab_size: int, sequences: int = 1, shortest: float = 1.0
) -> dict[str, np.ndarray]:
    """Returns a pre-training batch of random ids. All P masked positions of a row are used.

    Args:
      rows, seq_len, predictions: B, S and P.
      vocab_size: The number of pieces.
      sequences: The number of sequences per row. If there are several, the rows are packed: each row is split at random
        into sequences of at least 16 positions.
      shortest: The fraction of real positions in the first row. The fraction grows linearly to 1 in the last row.
    """
    rng = np.random.default_rng(0)
    batch = {
        name: np.zeros(*shape_and_dtype)
        for name, shape_and_dtype in pretraining_batch_spec(rows, seq_len, predictions, packed=sequences > 1).items()
    }
    batch['input_ids'][:] = rng.integers(min(1000, vocab_size // 2), vocab_size, (rows, seq_len))
    lengths = np.linspace(shortest * seq_len, seq_len, rows).astype(int)
    batch['attention_mask'][:] = np.arange(seq_len) < lengths[:, None]
    order = rng.permuted(np.tile(np.arange(seq_len), (rows, 1)), axis=1)
    chosen = [row[row < length][:predictions] for row, length in zip(order, lengths, strict=True)]
    batch['masked_positions'][:] = np.sort(chosen, axis=1)
    batch['masked_ids'][:] = rng.integers(min(1000, vocab_size // 2), vocab_size, (rows, predictions))
    batch['masked_weights'][:] = 1
    batch['nsp_labels'].reshape(rows, -1)[:, :sequences] = rng.integers(0, 2, (rows, sequences))
    batch['nsp_weights'].reshape(rows, -1)[:, :sequences] = 1
    for row in range(rows):
        cuts = 16 * np.sort(rng.choice(np.arange(1, seq_len // 16), sequences - 1, replace=False))
        starts, ends = [0, *cuts], [*cuts, seq_len]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            batch['segment_ids'][row, (start + end) // 2 : end] = 1
            if sequences > 1:
                batch['sequence_ids'][row, start:end] = number + 1
                batch['position_ids'][row, start:end] = np.arange(end - start)
                batch['cls_positions'][row, number] = start
    return batch
