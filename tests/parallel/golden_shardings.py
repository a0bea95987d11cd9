"""Prints the shardings of BERT-base on eight devices: the mesh axes of each parameter and its moments.

    python tests/parallel/golden_shardings.py --renew   # also writes tests/parallel/shardings/PRESET.txt

The diff of these files shows the effect of a change of parallel/rules.py or of the axis names of a parameter.
"""

import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / 'shardings'


def table(preset: str) -> str:
    """Returns a line per parameter for a mesh preset. Cells of the last two columns that equal the first are empty."""
    import jax

    from bertjax.config.recipes import pretraining_config
    from bertjax.optim.masks import path_names
    from bertjax.parallel.mesh import describe_mesh, make_mesh
    from bertjax.pretrain.run import build_pretraining_setup
    from bertjax.pretrain.settings import pretraining_settings

    def setup(zero1):
        config = pretraining_config('base', zero1=zero1)
        config.mesh.preset = preset
        settings = pretraining_settings(config)
        mesh = make_mesh(settings.mesh_axes, jax.devices()[:8])
        return build_pretraining_setup(settings, settings.model_config(30522), mesh)

    def describe(x):
        entries = (*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec)))
        split = [(entry,) if isinstance(entry, str) else entry or () for entry in entries]
        names = [' x '.join(axis for axis in axes if x.sharding.mesh.shape[axis] > 1) or '-' for axes in split]
        sizes = [f'{size} {name}'.removesuffix(' -') for size, name in zip(x.shape, names, strict=True)]
        return f'[{", ".join(sizes)}]'

    plain, sharded = setup('off'), setup('on')
    rows = [('parameter, and its moments', 'zero1=on: parameter', 'zero1=on: moments')]
    zero1_moments = [jax.tree.leaves(tree) for tree in (sharded.state.opt_state[1].mu, sharded.state.opt_state[1].nu)]
    moments = jax.tree.leaves(plain.state.opt_state[1].mu)
    params = jax.tree_util.tree_leaves_with_path(plain.state.params)
    leaves = zip(params, moments, jax.tree.leaves(sharded.state.params), *zero1_moments, strict=True)
    for (path, x), moment, zero1_x, mu, nu in leaves:
        first = describe(x)
        assert first == describe(moment) and describe(mu) == describe(nu)
        cells = [describe(zero1_x), describe(mu)]
        rows.append((f'{"/".join(path_names(path))} {first}', *('' if cell == first else cell for cell in cells)))
    width = [max(len(row[i]) for row in rows) + 2 for i in range(2)]
    lines = [f'{one:{width[0]}}{two:{width[1]}}{three}'.rstrip() for one, two, three in rows]
    return '\n'.join([describe_mesh(plain.mesh), '', *lines]) + '\n'


if __name__ == '__main__':
    os.environ |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    from bertjax.parallel.rules import PRESETS

    FOLDER.mkdir(exist_ok=True)
    for preset in PRESETS:
        text = table(preset)
        print(text)
        if '--renew' in sys.argv:
            (FOLDER / f'{preset}.txt').write_text(text, encoding='utf-8')
