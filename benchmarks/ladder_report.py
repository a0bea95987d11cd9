"""Prints the table of the runs of benchmarks/ladder.py and a fit of their losses, and draws their bits per byte.

    python benchmarks/ladder_report.py --picture=docs/budget.png

The fit is the loss as a function of size and tokens, for config.budget (bertjax/pretrain/budget_choice.py). The picture
shows the bits per byte over the processor time.
"""

import json
import math
import pathlib
from typing import Any

import numpy as np
import scipy.optimize
from absl import app, flags
from ladder_rungs import LADDER, Keys, rung_keys, size_keys

from bertjax.pretrain.budget_choice import PARAMETERS_EXPONENT, SIZES, inner_parameters

_RESULTS = flags.DEFINE_string('results', 'docs/results/ladder', 'The folder of the results, see ladder.py --kept.')
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
    print(f'\n{fit(results)}')
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


def fit(results: list[Keys]) -> str:
    """Fits the form of `bertjax.pretrain.budget_choice.expected_loss` to the runs of all sizes, and describes it.

    The exponent of the parameters is not fitted, because these runs hardly determine it: values from 0.34 to 0.73 have
    nearly equal errors. Runs of fewer than 500 steps are left out, because they have learned little more than the
    frequencies of pieces.
    """
    points = [
        (inner_parameters(keys['model.num_layers'], keys['model.width']),
         each['steps'] * keys['batch_size'] * keys['seq_len'], each['mlm_loss'])
        for each in results
        if _has_any_size(keys := each['keys']) and each['steps'] >= 500
    ]  # fmt: skip
    if len(points) < 6:
        return 'at least six runs of several sizes are needed for the fit'
    parameters, tokens, losses = np.asarray(points, np.float64).T

    def form(x: tuple[np.ndarray, np.ndarray], floor: float, a: float, b: float, beta: float) -> np.ndarray:
        return floor + np.exp(a) / x[0] ** PARAMETERS_EXPONENT + np.exp(b) / x[1] ** beta

    bounds = ([0.5, 0, 0, 0.2], [3, 12, 14, 0.8])
    start = (1.5, 4, 5, 0.3)
    values, _ = scipy.optimize.curve_fit(form, (parameters, tokens), losses, start, sigma=losses, bounds=bounds)
    error = np.abs(form((parameters, tokens), *values) - losses)
    floor, a, b, beta = values
    constants = f'{floor:.3f}, {math.exp(a):.3g}, {PARAMETERS_EXPONENT}, {math.exp(b):.3g}, {beta:.3f}'
    errors = f'mean error {error.mean():.3f}, largest {error.max():.3f}'
    return f'constants of expected_loss: {constants}; {len(points)} runs, {errors}'


if __name__ == '__main__':
    app.run(main)
