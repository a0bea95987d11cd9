"""What a pre-training says of its examples before it starts."""

import pathlib

import jax
import pytest

from bertjax.experiment.pretraining import Pretraining
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.parallel.mesh import make_mesh
from bertjax.recipe import pretraining_config

SMALL = {'width': 8, 'mlp_dim': 16, 'num_layers': 1, 'num_heads': 1}


@pytest.mark.parametrize(('mode', 'effect'), [('nsp', 'NSP learns to answer NotNext'), ('sop', 'SOP learns nothing')])
def test_chunks_of_one_sentence(mode: str, effect: str, tmp_path: pathlib.Path, capsys):
    """Text without full stops: each document is one sentence, which is longer than a row."""
    lines = (' '.join(f'{"abcdefgh"[(i * j) % 8]}{i % 7}' for j in range(40)) for i in range(40))
    (tmp_path / 'log.txt').write_text('\n\n'.join(lines))
    config = pretraining_config('tiny', corpus=str(tmp_path / 'log.txt'), seq_len=32, max_predictions=4, batch_size=8)
    config.vocab.size, config.pairs.mode, config.pair_plans = 200, mode, 2
    config.model.update(SMALL)
    settings = pretraining_settings(config)
    text = Pretraining(settings, tmp_path / 'run', make_mesh(settings.mesh, jax.devices()[:1])).describe()
    (warning,) = [line for line in text.splitlines() if line.startswith('warning: all chunks hold a single sentence')]
    assert effect in warning and 'config.pairs.mode=full_sentences' in warning and 'split_sentences=False' in warning
    assert ('0.0% IsNext, no chunk has two sentences; ' in text) == (mode == 'nsp')
