"""Prints the table of the runs of benchmarks/ladder.py and the scaling law, and draws the bits per byte of the runs.

    python benchmarks/ladder_report.py --picture=docs/budget.png

The scaling law (bertjax/pretrain/scaling_law.py) is fitted to docs/results/scaling.json. The picture shows the bits per
byte over the processor time.
"""

import json
import pathlib
from typing import Any

import numpy as np
from absl import app, flags
from ladder_rungs import LADDER, Keys, rung_keys, size_keys

from bertjax.model.config import BertConfig, inner_parameters
from bertjax.pretrain.budget_choice import SIZES, gated_width
from bertjax.pretrain.scaling_law import PARAMETERS_EXPONENT, TOKENS_EXPONENT

_RESULTS = flags.DEFINE_string('results', 'docs/results/ladder', 'The folder of the results, see ladder.py --kept.')
_SCALING = flags.DEFINE_string('scaling', 'docs/results/scaling.json', 'The runs of the scaling law.')
_PICTURE = flags.DEFINE_string('picture', '', 'The picture; empty: none.')


def _has_any_size(keys: Keys) -> bool:
    """Returns whether the keys are those of the rung 'bfloat16', apart from the model size.

    The sizes were compared with this rung, before `budget.py` got weight decay 0.1 and full rows.
    """
    size, recipe = size_keys(*SIZES[0]), rung_keys(next(rung for rung in LADDER if rung.name == 'bfloat16'))
    return keys.keys() == recipe.keys() and all(recipe[name] == keys[name] for name in recipe.keys() - size.keys())


def main(_: Any) -> None:
    results = [json.loads(path.read_text()) for path in pathlib.Path(_RESULTS.value).glob('*.json')]
    print(
        '| change | minutes | seed | steps | MLM loss | bits per byte | minimal pairs |\n|---|---|---|---|---|---|---|'
    )
    order = [rung.name for rung in LADDER]
    for result in sorted(results, key=lambda each: (order.index(each['name']), each['minutes'], each['seed'])):
        pairs = result.get('pairs')
        right = f'{100 * pairs["accuracy"]:.1f} ± {100 * pairs["standard_error"]:.1f}' if pairs else ''
        name = (
            result['name']
            if next(rung for rung in LADDER if rung.name == result['name']).kept
            else f'({result["name"]})'
        )
        figures = f'{result["mlm_loss"]:.3f} | {result["bits_per_byte"]:.3f}'
        print(f'| {name} | {result["minutes"]:g} | {result["seed"]} | {result["steps"]:,} | {figures} | {right} |')
    print(f'\n{fit(json.loads(pathlib.Path(_SCALING.value).read_text())["runs"])}')
    if _PICTURE.value:
        draw(results, _PICTURE.value)


def draw(results: list[Keys], path: str) -> None:
    """Draws the bits per byte over the processor time: a line for each size, and for each peer."""
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[float, float]]] = {}
    peers = {rung.name: rung.name for rung in LADDER if rung.peer} | {LADDER[0].name: "BERT's recipe in bertjax"}
    for result in results:
        keys, name = result['keys'], result['name']
        if _has_any_size(keys):
            name = f'weight decay 0.01, {keys["model.num_layers"]} layers of width {keys["model.width"]}'
        elif name not in peers:
            continue
        curves.setdefault(peers.get(name, name), []).append((result['minutes'], result['bits_per_byte']))
    figure = Figure(figsize=(7, 4.6), layout='constrained')
    axis = figure.subplots()
    for name, points in sorted(curves.items()):
        style = 'o-' if name.startswith('weight decay') else 's--'
        axis.plot(*zip(*sorted(points), strict=True), style, label=name, markersize=4, linewidth=1.4)
    axis.set(xscale='log', xlabel='processor time of one core in minutes', ylabel='held-out bits per byte')
    axis.set_xticks([1.5, 5, 15, 60], labels=['1.5', '5', '15', '60'])
    axis.minorticks_off()
    axis.spines[['top', 'right']].set_visible(False)
    figure.legend(frameon=False, loc='outside upper center', ncols=2)
    figure.savefig(path, dpi=144)


def fit(runs: list[dict[str, Any]]) -> str:
    """Fits `bertjax.pretrain.scaling_law.bits_per_byte` to runs, and describes the result.

    The exponents are not fitted, because these runs hardly determine them.
    """
    sizes = [(run['layers'], run['width']) for run in runs]
    configs = (BertConfig(num_layers=L, width=D, num_heads=1, mlp='geglu', mlp_dim=gated_width(D)) for L, D in sizes)
    parameters = np.array([inner_parameters(config) for config in configs])
    tokens, bits = (np.array([run[name] for run in runs]) for name in ('positions', 'bits_per_byte'))
    terms = np.stack([np.ones(len(runs)), parameters**-PARAMETERS_EXPONENT, tokens**-TOKENS_EXPONENT], 1)
    (floor, a, b), *_ = np.linalg.lstsq(terms, bits)
    errors = np.abs(terms @ (floor, a, b) - bits)
    constants = f'FLOOR {floor:.3f}, PARAMETERS_FACTOR {a:.3g}, TOKENS_FACTOR {b:.3g}'
    return f'{constants}; {len(runs)} runs, mean error {errors.mean():.3f} bits per byte, largest {errors.max():.3f}'


if __name__ == '__main__':
    app.run(main)
