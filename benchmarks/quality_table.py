"""Tables of benchmarks/quality.py: losses at equal numbers of examples, and examples per second."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SIDES = ('bertjax', 'transformers')

# The figures of a seed: 'points' is [{'examples': n, side: {'loss': …}}], and 'times' is
# {side: [(wall time, CPU time) of each block, in seconds]}.
Result = Mapping[str, Any]


def loss_table(results: Sequence[Result]) -> list[str]:
    """Returns a table of the losses of both sides: mean and standard deviation over the seeds that reached each point.

    The table also has the mean difference between the two runs of a seed. A difference is within the spread if it is at
    most the standard deviation over seeds, pooled over both sides.
    """
    lines = [f'{"examples":>9} {"seeds":>5}  {"bertjax":>15}  {"transformers":>15}  {"difference":>15}  within spread']
    for examples in sorted({point['examples'] for result in results for point in result['points']}):
        points = [point for result in results for point in result['points'] if point['examples'] == examples]
        ours, theirs = ([point[name]['loss'] for point in points] for name in SIDES)
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        cells = ''.join(f'  {_mean(x):>15}' for x in (ours, theirs, differences))
        lines.append(f'{examples:>9,} {len(points):>5}{cells}  {_verdict(ours, theirs)}')
    return lines


def _mean(values: Sequence[float]) -> str:
    return f'{statistics.fmean(values):.3f}' + (f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else '')


def _verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if len(ours) < 2:
        return 'one seed has none'
    spread = ((statistics.variance(ours) + statistics.variance(theirs)) / 2) ** 0.5
    return 'yes' if abs(statistics.fmean(ours) - statistics.fmean(theirs)) <= spread else 'NO'


def speed_lines(results: Sequence[Result], examples: int) -> list[str]:
    """Returns lines with the examples per second of both sides, by CPU time and wall time, and their median ratios.

    Args:
      results: The figures of all seeds.
      examples: The number of examples per block.
    """
    blocks = {name: [pair for result in results for pair in result['times'][name]] for name in SIDES}
    lines = []
    for name, pairs in blocks.items():
        passed, used = (examples * len(pairs) / sum(column) for column in zip(*pairs, strict=True))
        lines.append(f'{name:>12}: {used:6.1f} examples/s of the processor, {passed:6.1f} by the clock')
    for i, clock in ((1, 'of the processor'), (0, 'by the clock')):
        ratios = [theirs[i] / ours[i] for ours, theirs in zip(*blocks.values(), strict=True)]
        low, high = np.quantile(ratios, (0.25, 0.75))
        lines.append(
            f'bertjax {statistics.median(ratios):.2f} times the examples/s {clock} '
            f'(median of {len(ratios)} blocks of each, quartiles {low:.2f} and {high:.2f})'
        )
    return lines
