"""Every shipped recipe builds, resolves, and trains one step at reduced width."""

import importlib.util
import itertools
import pathlib

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.parallel.mesh import make_mesh
from bertjax.runs import _settings as settings
from bertjax.runs._training import build_training

CONFIGS = sorted((pathlib.Path(__file__).parent.parent / 'configs').glob('*.py'))
ARGUMENTS = {
    'pretrain_base': ['', 'no_nsp', 'ltr', 'ltr,bilstm', 'masking=0/20/80', 'size=l6_d768_h3', 'cased'],
}
RECIPES = [(path, argument) for path in CONFIGS for argument in ARGUMENTS.get(path.stem, [''])]


def load(path: pathlib.Path, argument: str):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument) if argument else module.get_config()


@pytest.mark.parametrize(('path', 'argument'), RECIPES, ids=lambda value: getattr(value, 'stem', value))
def test_recipe_resolves_and_takes_a_step(path: pathlib.Path, argument: str):
    config = load(path, argument)
    settings.model_config(config, config.vocab.size)  # at full size: only described
    settings.pair_options(config)
    settings.mask_options(config)
    phases = settings.phases(config, settings.total_steps(config, None))
    assert phases[0].first_step == 0 and all(a.last_step == b.first_step for a, b in itertools.pairwise(phases))

    config.model.width, config.model.mlp_dim, config.model.num_heads, config.model.num_layers = 16, 32, 2, 1
    config.mesh.data = 1
    for i, phase in enumerate(config.phases):
        phase.batch_size, phase.accumulate = 4, min(2, phase.get('accumulate', 1))
        phase.seq_len, phase.max_predictions = 16 * (i + 1), 3
    config.batch_size, config.seq_len, config.max_predictions = 4, 16, 3
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    training = build_training(config, settings.model_config(config, 100), mesh)
    phase = settings.phases(config, settings.total_steps(config, None))[-1]
    # Any finite numbers do, and drawing them would take longer than the step.
    state = jax.tree.map(lambda x: jax.device_put(np.full(x.shape, 0.01, x.dtype), x.sharding), training.state)
    ones = {name: np.ones(x.shape, x.dtype) for name, x in training.batch(phase).items()}
    batch = {name: jax.device_put(x, training.batch(phase)[name].sharding) for name, x in ones.items()}
    new, metrics = training.lower(phase).compile()(state, batch)
    assert int(new.step) == 1 and int(new.skipped) == 0
    assert np.isfinite(float(metrics['scalars']['grad_norm']))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_docstring_has_the_command(path: pathlib.Path):
    text = path.read_text(encoding='utf-8')
    assert f'python -m bertjax.main --config=configs/{path.name}' in text
    assert 'ardware' in text or 'CPU' in text


def test_ablations_say_what_the_paper_says():
    base = CONFIGS[[path.stem for path in CONFIGS].index('pretrain_base')]
    masking = load(base, 'masking=0/20/80').masking
    assert (masking.mask, masking.random) == (0.0, 0.8)
    ltr = load(base, 'ltr,bilstm')
    assert ltr.model.causal and ltr.head.bilstm and ltr.pairs.mode == 'doc_sentences'
    assert load(base, 'size=l3_d768_h12').model.num_layers == 3
    with pytest.raises(UserError, match='masking'):
        load(base, 'masking=1/2')


def test_lamb_phases_are_the_published_ones():
    lamb = CONFIGS[[path.stem for path in CONFIGS].index('pretrain_large_lamb')]
    phases = settings.phases(load(lamb, ''), 8601)
    assert [(p.last_step - p.first_step, p.batch_size, p.seq_len, p.learning_rate) for p in phases] == [
        (7038, 65536, 128, 6e-3),
        (1563, 32768, 512, 4e-3),
    ]
