"""The two sides of benchmarks/quality.py differ in nothing but their programs and their dropout."""

import jax
import numpy as np
import pytest

from bertjax.experiment.pretraining import build_pretraining_setup
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.parallel.mesh import make_mesh
from bertjax.recipe import pretraining_config
from bertjax.text.tokenizer import load_tokenizer
from bertjax.train.members import Member
from bertjax.train.phase import Phase

VOCABULARY = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{i}' for i in range(198))]
STEPS = 4


@pytest.mark.slow
def test_without_dropout_both_sides_take_the_same_steps(torch, batch, tmp_path, monkeypatch, repository):
    monkeypatch.syspath_prepend(repository / 'benchmarks')
    from sides import both

    rows = {name: x[:4] for name, x in batch.items()}  # the fifth is padding alone
    config = pretraining_config('tiny', batch_size=4, steps=STEPS, seq_len=24, max_predictions=6, learning_rate=1e-2)
    config.warmup_fraction = 1 / STEPS  # the first rate is 0, the second the highest
    config.optimizer.update(name='adamw', weight_decay=0.1, clip_norm=0.5)
    sizes = dict(num_layers=2, width=32, num_heads=4, mlp_dim=80, max_positions=48)
    config.model.update(dropout=0.0, attention_dropout=0.0, scan_layers=False, **sizes)
    settings = pretraining_settings(config)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    setup = build_pretraining_setup(settings, settings.model(len(VOCABULARY)), mesh)
    (given,) = settings.phases(STEPS)
    phase = Phase(given, setup, [Member(None, given.learning_rate, 0)], given.batches)
    vocabulary = tmp_path / 'vocab.txt'
    vocabulary.write_text('\n'.join(VOCABULARY) + '\n')

    sides = both(phase, settings, load_tokenizer(vocabulary), tmp_path / 'model', mode='eager', seed=0)
    losses = []
    for i in range(STEPS):
        for side in sides.values():
            side.step(4 * i, rows)
        losses.append([side.wait() for side in sides.values()])
    ours, theirs = np.transpose(losses)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    assert ours[0] == pytest.approx(ours[1], rel=1e-6) and ours[-1] < ours[0] - 0.2

    def close(path, mine, others):
        by_piece = [key.key for key in path] in (['encoder', 'embeddings', 'token', 'embedding'], ['mlm', 'bias'])
        rows = len(VOCABULARY) if by_piece else None  # what pads the vocabulary is not theirs
        np.testing.assert_allclose(mine[:rows], others[:rows], atol=2e-4, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(close, *(side.params(tmp_path / 'model') for side in sides.values()))
