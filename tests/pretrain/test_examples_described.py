"""Tests the examples of a pre-training and their description."""

import pathlib

import jax
import numpy as np
import pytest

from bertjax.config.recipes import pretraining_config
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import Pretraining
from bertjax.pretrain.settings import pretraining_settings

SMALL = {'width': 8, 'mlp_dim': 16, 'num_layers': 1, 'num_heads': 1}


@pytest.mark.parametrize(
    ('mode', 'effect', 'kept'),
    [('nsp', 'NSP learns to answer NotNext', '36%'), ('sop', 'SOP learns nothing', '75%')],
)
def test_chunks_of_one_sentence_give_a_warning(mode: str, effect: str, kept: str, tmp_path: pathlib.Path, capsys):
    """The text has no full stops, so each document is one sentence, which is longer than a row."""
    lines = (' '.join(f'{"abcdefgh"[(i * j) % 8]}{i % 7}' for j in range(40)) for i in range(40))
    (tmp_path / 'log.txt').write_text('\n\n'.join(lines))
    config = pretraining_config('tiny', corpus=str(tmp_path / 'log.txt'), seq_len=32, max_predictions=4, batch_size=8)
    config.vocab.size, config.pairs.mode, config.pair_plans = 200, mode, 2
    config.model.update(SMALL)
    settings = pretraining_settings(config)
    text = Pretraining(settings, tmp_path / 'run', make_mesh(settings.mesh_axes, jax.devices()[:1])).describe()
    (warning,) = [line for line in text.splitlines() if line.startswith('warning: all chunks have a single sentence')]
    assert effect in warning and f'Rows keep {kept} of the tokens' in warning
    assert 'config.pairs.mode=full_sentences' in warning and 'split_sentences=False' in warning
    assert '100.0% of the chunks have one sentence; ' in text and ('0.0% IsNext; ' in text) == (mode == 'nsp')


def test_heldout_text_has_15_percent_masks_for_any_mask_rate_of_training(tmp_path: pathlib.Path):
    text = (
        f'{"ABCDEFGH"[i]}{i % 7} {"abc de f gh " * (i % 5 + 1)}stop. And {i} more.\n\n'
        for j in range(9)
        for i in range(8)
    )
    (tmp_path / 'text.txt').write_text(''.join(f'{j} {part}' for j, part in enumerate(text)))
    corpus = str(tmp_path / 'text.txt')
    config = pretraining_config('tiny', corpus=corpus, seq_len=32, max_predictions=13, batch_size=8, pair_plans=2)
    config.corpus_options.heldout, config.corpus_options.workers = 0.3, 1
    config.vocab.size, config.masking.rate = 60, 0.4
    config.model.update(SMALL)
    settings = pretraining_settings(config)
    training = Pretraining(settings, tmp_path, make_mesh(settings.mesh_axes, jax.devices()[:1]))
    for split, rate, most in (('train', 0.4, 13), ('heldout', 0.15, 5)):
        rows = training.examples.get((32, 13), split, 0).batch(np.arange(32))
        maskable = rows['attention_mask'].sum(1) - 2 - rows['segment_ids'].any(1)  # Without [CLS] and [SEP].
        assert rows['masked_weights'].shape[1] == most
        np.testing.assert_array_equal(rows['masked_weights'].sum(1), np.clip(np.rint(maskable * rate), 1, most))
    assert 'masked positions: 40% in training, 15% in evaluation' in training.describe()

    # The corpora of a mixture have independent masks, and the first one is masked as it is without the others.
    def masks(corpora: int) -> list[np.ndarray]:
        examples = StoreExamples(settings, training.examples.stores * corpora, training.tokenizer, None)
        parts = getattr(mixed := examples.get((32, 13), 'train', 0), '_components', [mixed])
        return [part.batch(np.arange(32))['masked_positions'] for part in parts]

    (alone,), (first, second) = masks(1), masks(2)
    np.testing.assert_array_equal(alone, first)
    assert (first != second).any(1).mean() > 0.9


def test_words_longer_than_the_number_of_masks_give_a_warning(tmp_path: pathlib.Path):
    """In unspaced sequences, all pieces are a single word, of which only the first ones would be masked."""
    draw = np.random.default_rng(0)
    (tmp_path / 'dna.txt').write_text('\n\n'.join(''.join(draw.choice([*'ACGT'], 60)) for _ in range(40)))
    config = pretraining_config('tiny', corpus=str(tmp_path / 'dna.txt'), seq_len=32, max_predictions=4, batch_size=8)
    config.vocab.size, config.vocab.family, config.pairs.mode, config.pair_plans = 270, 'bpe', 'full_sentences', 2
    config.model.update(SMALL)
    mesh = make_mesh(pretraining_settings(config).mesh_axes, jax.devices()[:1])
    for unit in ('token', 'word'):
        config.masking.unit = unit
        text = Pretraining(pretraining_settings(config), tmp_path / 'run', mesh).describe()
        assert ('always the first ones: set --config.masking.unit=token' in text) == (unit == 'word')
