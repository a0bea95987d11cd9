"""Tests the facts of a pre-training on its model card."""

from bertjax.config.plain import to_plain
from bertjax.config.recipes import phase, pretraining_config
from bertjax.pretrain.summary import _model_card_facts


def test_a_phase_shows_only_the_values_that_it_overrides():
    phases = (phase(steps='90%', mask_rate=0.3, final_mask_rate=0.15), phase(steps='10%', seq_len=256))
    config = to_plain(pretraining_config('tiny', phases=phases))
    card = _model_card_facts({**config, 'fingerprints': {'store': 'a', 'tokenizer': 'b'}}, [])
    overrides = {'steps 90%', 'mask_rate 0.3', 'final_mask_rate 0.15'}, {'steps 10%', 'seq_len 256'}
    for number, expected in enumerate(overrides):
        assert set(card[f'phase {number}'].split(', ')) == {*expected, 'reset_optimizer False'}
