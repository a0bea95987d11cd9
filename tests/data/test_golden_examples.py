"""Tests that examples have their recorded bits."""

import hashlib

import numpy as np
import pytest

from bertjax.data.masking import MaskOptions
from bertjax.data.packing import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples

DIGESTS = {
    ('nsp', 'token', False): '0de9f0ff36dc5f8b',
    ('nsp', 'token', True): 'f813909f33899bba',
    ('nsp', 'word', False): '0869fb811eb9a329',
    ('nsp', 'word', True): 'fae16ff1916e1f68',
    ('nsp', 'span', False): 'b5cf26661233bdf2',
    ('nsp', 'span', True): '93e449be04e87026',
    ('sop', 'word', False): 'f7e544c0dacad733',
    ('sop', 'span', False): '998cd19b5d56a2fb',
    ('full_sentences', 'word', False): '503461aebbee1f24',
    ('full_sentences', 'span', False): 'b21fa2e6cbba9f05',
    ('full_rows', 'token', False): '6987a1b6646bc7d7',
}


@pytest.mark.parametrize('mode, unit, packed', DIGESTS)
def test_examples_never_change(split, vocabulary, mode, unit, packed):
    examples = PretrainingExamples(
        split, vocabulary, seq_len=96, max_predictions=16, pairs=PairOptions(mode=mode, plans=2),
        masking=MaskOptions(unit=unit), seed=3, phase=1, cache_dir=None,
    )  # fmt: skip
    examples = PackedExamples(examples) if packed else examples
    batch = examples.batch(np.concatenate([np.arange(300), examples.cycle_length + np.arange(50)]))
    digest = hashlib.sha256(b''.join(batch[name].tobytes() for name in sorted(batch))).hexdigest()
    assert digest[:16] == DIGESTS[mode, unit, packed]
