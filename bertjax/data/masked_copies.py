"""Makes copies of sequences with one masked token each, to compute pseudo-log-likelihoods."""

from collections.abc import Sequence

import numpy as np

from bertjax.data.features import Features


def masked_copies(sequences: Sequence[np.ndarray], mask_id: int) -> Features:
    """Builds one copy of a sequence for each of its tokens except [CLS] and [SEP], with that token masked.

    Args:
      sequences: The token ids of each sequence, int32 [S], with [CLS] and [SEP]; at least one has S > 2.
      mask_id: The id of [MASK].

    Returns:
      The copies, in the order of the sequences and of their tokens. `record` is the index of the sequence. The row
      arrays `masked_positions` and `masked_ids`, int32 [rows, 1], are the position of [MASK] and the id that it
      replaces.
    """
    counts = np.array([max(len(ids) - 2, 0) for ids in sequences])
    record = np.repeat(np.arange(len(sequences)), counts)
    lengths = counts[record] + 2
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([np.tile(ids, count) for ids, count in zip(sequences, counts.tolist(), strict=True)])
    positions = np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in counts.tolist()])
    masked = offsets[:-1] + positions
    masked_ids = tokens[masked]
    tokens[masked] = mask_id
    return Features(
        tokens=tokens.astype(np.int32),
        offsets=offsets,
        second=lengths.astype(np.int32),
        record=record.astype(np.int32),
        row={
            'weights': np.ones(len(record), np.float32),
            'masked_positions': positions[:, None],
            'masked_ids': masked_ids[:, None].astype(np.int32),
        },
        token={},
    )
