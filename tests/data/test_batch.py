"""Tests that batches have the arrays of the table in bertjax/data/batch.py."""

import numpy as np
import pytest

from bertjax.data.batch import padding_rows, pretraining_batch_spec
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import MODES, PairOptions
from bertjax.data.pretraining import PretrainingExamples


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('rows', [0, 1, 7])
def test_batches_match_the_table(split, vocabulary, mode, rows):
    examples = PretrainingExamples(
        split,
        vocabulary,
        seq_len=48,
        max_predictions=9,
        pairs=PairOptions(mode=mode, plans=1),
        masking=MaskOptions(),
        seed=0,
        phase=0,
        cache_dir=None,
    )
    batch = examples.batch(np.arange(rows))
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == pretraining_batch_spec(rows, 48, 9)


def test_padding_rows_have_no_weight():
    spec = pretraining_batch_spec(3, 16, 4)
    rows = padding_rows(spec, pad_id=7)
    assert {name: (x.shape, x.dtype) for name, x in rows.items()} == spec
    assert (rows.pop('input_ids') == 7).all()
    assert not any(x.any() for x in rows.values())
