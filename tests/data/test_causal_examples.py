"""Tests the share and the content of causal examples among masked ones."""

import numpy as np
import pytest
from data_fakes import synthetic_split

from bertjax.data.batch import pretraining_batch_spec
from bertjax.data.masking import MaskOptions
from bertjax.data.packing import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples

S, P, SHARE = 64, 10, 0.3


def examples_of(vocabulary, share=SHARE, seed=0, phase=0, **masking):
    return PretrainingExamples(
        synthetic_split(documents=150, sentences=4),
        vocabulary,
        seq_len=S,
        max_predictions=P,
        pairs=PairOptions(mode='doc_sentences', plans=2),
        masking=MaskOptions(causal_share=share, **masking),
        seed=seed,
        phase=phase,
        cache_dir=None,
    )


@pytest.mark.parametrize('unit', ['token', 'span'])
def test_causal_examples_are_not_masked_and_the_others_are_unchanged(vocabulary, unit):
    n = np.arange(2000)
    hybrid, plain = (examples_of(vocabulary, share, unit=unit).batch(n) for share in (SHARE, 0.0))
    assert {name: (x.shape, x.dtype) for name, x in hybrid.items()} == pretraining_batch_spec(2000, S, P, causal=True)
    assert 'causal' not in plain
    causal = hybrid['causal'].any(1)
    assert abs(causal.mean() - SHARE) < 4 * np.sqrt(SHARE * (1 - SHARE) / len(n))
    np.testing.assert_array_equal(hybrid['causal'], hybrid['attention_mask'] * causal[:, None])
    for name, x in plain.items():
        rows = slice(None) if name != 'input_ids' else ~causal
        np.testing.assert_array_equal(hybrid[name][rows], x[rows])
    inputs = np.take_along_axis(hybrid['input_ids'], hybrid['masked_positions'], 1)
    used = hybrid['masked_weights'] > 0
    assert (inputs == hybrid['masked_ids'])[causal][used[causal]].all()
    assert (hybrid['masked_positions'][used] > 0).all()  # A causal prediction needs a previous position.
    unchanged = (inputs == hybrid['masked_ids'])[~causal][used[~causal]].mean()
    assert unchanged == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('static', [False, True])
def test_the_number_of_an_example_decides_whether_it_is_causal(vocabulary, packed, static):
    def build(**keys):
        examples = examples_of(vocabulary, static=static, **keys)
        return PackedExamples(examples) if packed else examples

    n = np.concatenate([np.arange(60), 10**9 + np.arange(10)])
    together = build().batch(n)
    for some in (np.arange(70)[::-3], np.array([5, 5, 65])):
        for name, x in build().batch(n[some]).items():
            np.testing.assert_array_equal(x, together[name][some])
    for keys in ({'seed': 1}, {'phase': 1}):
        assert (build(**keys).batch(n)['causal'].any(1) != together['causal'].any(1)).any()


def test_packed_rows_contain_the_same_examples(vocabulary):
    examples = examples_of(vocabulary)
    packed = PackedExamples(examples)
    rows, (_, numbers, _) = packed.batch(np.arange(40)), packed.locate(np.arange(40))
    assert {name: (x.shape, x.dtype) for name, x in rows.items()} == pretraining_batch_spec(40, S, P, True, True)
    alone = examples.batch(numbers)
    real = alone['attention_mask'] > 0
    for name in ('input_ids', 'causal'):
        np.testing.assert_array_equal(rows[name][rows['attention_mask'] > 0], alone[name][real])
    assert not rows['causal'][rows['attention_mask'] == 0].any()


def test_evaluation_has_no_causal_examples():
    assert MaskOptions(rate=0.4, causal_share=0.5).for_evaluation() == MaskOptions()
