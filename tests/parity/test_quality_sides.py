"""Tests that the two sides of benchmarks/quality.py take the same steps without dropout, and tests its table."""

import jax
import numpy as np
import pytest

from bertjax.config.recipes import pretraining_config
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.training.phase import Phase
from bertjax.training.vmapped_runs import VmappedRun

VOCABULARY = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{i}' for i in range(198))]
STEPS = 4


@pytest.mark.slow
def test_without_dropout_both_sides_take_the_same_steps(torch, batch, tmp_path, monkeypatch, repository):
    monkeypatch.syspath_prepend(repository / 'benchmarks')
    from sides import both

    rows = {name: x[:4] for name, x in batch.items()}  # The fifth row is only padding.
    config = pretraining_config('tiny', batch_size=4, steps=STEPS, seq_len=24, max_predictions=6, learning_rate=1e-2)
    config.warmup_fraction = 1 / STEPS  # The first rate is 0, and the second one is the peak.
    config.optimizer.update(name='adamw', weight_decay=0.1, clip_norm=0.5)
    sizes = dict(num_layers=2, width=32, num_heads=4, mlp_dim=80, max_positions=48)
    config.model.update(dropout=0.0, attention_dropout=0.0, scan_layers=False, **sizes)
    settings = pretraining_settings(config)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    setup = build_pretraining_setup(settings, settings.model_config(len(VOCABULARY)), mesh)
    (spec,) = settings.resolve_phases(STEPS)
    phase = Phase(spec, setup, [VmappedRun(None, spec.learning_rate, 0)], spec.batches)
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

    def check(path, ours, theirs):
        by_piece = [key.key for key in path] in (['encoder', 'embeddings', 'token', 'embedding'], ['mlm', 'bias'])
        rows = len(VOCABULARY) if by_piece else None  # Their vocabulary has no padding rows.
        np.testing.assert_allclose(ours[:rows], theirs[:rows], atol=2e-4, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(check, *(side.params(tmp_path / 'model') for side in sides.values()))


def _seed(ours, theirs):
    losses = [{'examples': 16, 'bertjax': {'loss': ours}, 'transformers': {'loss': theirs}}]
    return {'points': losses, 'times': {'bertjax': [(2.0, 1.0), (2.0, 1.0)], 'transformers': [(3.0, 4.0), (5.0, 2.0)]}}


def test_the_table_says_whether_losses_are_within_the_spread_of_seeds(monkeypatch, repository):
    monkeypatch.syspath_prepend(repository / 'benchmarks')
    from quality_table import loss_table, speed_lines

    near, far = [_seed(8.0, 8.06), _seed(8.1, 8.16)], [_seed(8.0, 8.08), _seed(8.1, 8.18)]  # The spread is 0.071.
    rows = [loss_table(results)[1].split() for results in (near, far, near[:1])]
    assert [row[-1] for row in rows] == ['yes', 'NO', 'none'] and [row[1] for row in rows] == ['2', '2', '1']
    assert rows[1][2:8] == ['8.050', '±', '0.071', '8.130', '±', '0.071'] and rows[1][8] == '-0.080'
    speed = speed_lines(near[:1], 16)
    assert '16.0 examples/s of the processor,    8.0 by the clock' in speed[0]
    assert 'bertjax 3.00 times' in speed[2] and 'bertjax 2.00 times' in speed[3]
