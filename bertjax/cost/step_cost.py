"""The estimated time of a compiled step: entries of compile.json, and the tables that run=compile prints."""

import collections
from typing import Any

from rich.table import Table

from bertjax.cost.estimate import EFFICIENCY, Estimate, Rates, estimate
from bertjax.cost.hlo import parse
from bertjax.parallel.topology import generation_of, ici_bandwidth, slice_chips
from bertjax.terminal import make_table


def step_cost(text: str, topology: str, flops: float, peak_flops: float) -> dict[str, Any]:
    """Estimates the time of a step and the bytes that it sends, from its optimized HLO `text` (docs/performance.md).

    Args:
      topology: The slice or the GPUs; see `parallel.topology.topology_devices`.
      flops: The FLOPs per step and chip, computed from the shapes of the model.
      peak_flops: The peak FLOPs per second of a chip.

    Returns:
      Entries of compile.json. If the HLO cannot be parsed, the only entry is `estimate_error`.
    """
    chip = generation_of(topology)
    links = lambda group: ici_bandwidth(topology, group)  # noqa: E731
    rates = Rates(chip.clock_hz, peak_flops, chip.hbm_bandwidth, links, chip.network_bandwidth)
    try:
        step = estimate(parse(text), rates, slice_chips(topology))
    except (ValueError, LookupError, StopIteration, AttributeError, TypeError) as error:
        return {'estimate_error': f'{type(error).__name__}: {error}'}
    counts = collections.Counter(collective.kind for collective in step.collectives)
    return {
        'collectives': dict(sorted(counts.items())),
        'estimated_step_s': step.step_s,
        'mfu_estimate': flops / peak_flops / step.step_s if step.step_s else None,
        'modelled_share': step.modelled_share,
        'estimate': {
            'compiler_s': step.seconds('compiler'),
            'kernels_s': step.seconds('kernel'),
            'without_estimate_s': step.seconds('other'),
            'exposed_collectives_s': step.seconds('exposed'),
            'clock_hz': chip.clock_hz,
            'unknown_loops': step.unknown_loops,
            'silent_kernels': step.silent_kernels,
        },
        'groups': [{'group': part, 'seconds': seconds} for part, seconds in step.parts()],
        'sent': _sum_sent(step),
    }


def _sum_sent(step: Estimate) -> list[dict[str, Any]]:
    """Sums the collectives by kind, group size and network. The sums with the most seconds come first."""
    rows: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for collective in step.collectives:
        row = {'count': 1, 'async': collective.first != collective.last, 'bytes': collective.sent}
        row |= {'seconds': collective.seconds, 'exposed_s': collective.exposed}
        rows[collective.kind, collective.chips, collective.network].update(
            {key: collective.count * value for key, value in row.items()}
        )
    totals = [{'kind': kind, 'chips': chips, 'network': network, **row} for (kind, chips, network), row in rows.items()]
    return sorted(totals, key=lambda row: -row['seconds'])


def cost_lines(result: dict[str, Any]) -> list[str]:
    """Returns the lines that describe a result of `step_cost`."""
    if 'estimate_error' in result:
        return [f'  no estimate: the HLO of the step could not be parsed ({result["estimate_error"]})']
    if not result.get('estimated_step_s'):
        return ['  no estimate: the compiler does not report cycles']
    sources, step = result['estimate'], result['estimated_step_s']
    exposed, without = sources['exposed_collectives_s'], sources['kernels_s'] + sources['without_estimate_s']
    lines = [
        f'  estimated, not measured: {1e3 * step:.1f} ms per step, {100 * result["mfu_estimate"]:.0f} % MFU',
        f'  from cycles of the compiler: {1e3 * sources["compiler_s"]:.1f} ms (at {sources["clock_hz"] / 1e9:g} GHz); '
        f'from the cost model of bertjax ({100 * result["modelled_share"]:.0f} % of the step): custom kernels and '
        f'other operations {1e3 * without:.1f} ms (at {100 * EFFICIENCY:.0f} % of the peak FLOPs or the memory '
        f'bandwidth), exposed collectives {1e3 * exposed:.1f} ms',
    ]
    if loops := sources['unknown_loops']:
        lines.append(f'  a lower bound: loops of unknown trip count, counted as one iteration each: {len(loops)}')
    if kernels := sources['silent_kernels']:
        lines.append(f'  a lower bound: custom kernels without cost_estimate, counted without FLOPs: {len(kernels)}')
    return lines


def cost_tables(result: dict[str, Any]) -> list[Table]:
    """Returns the tables of the parts of a step and of its collectives, except empty tables."""
    step = result.get('estimated_step_s')
    if not step:
        return []
    parts = make_table('where the time goes (estimated)', 'part of the step', 'ms', 'share')
    for row in result['groups']:
        parts.add_row(row['group'], f'{1e3 * row["seconds"]:.2f}', f'{100 * row["seconds"] / step:.1f} %')
    names = ('collective', 'chips', 'per step', 'async', 'MB sent', 'ms', 'ms not overlapped')
    sent = make_table('between the chips (estimated)', *names)
    for row in result['sent']:
        figures = (row['bytes'] / 1e6, 1e3 * row['seconds'], 1e3 * row['exposed_s'])
        counts = (row['chips'], row['count'], row['async'])
        kind = f'{row["kind"]}, between slices' if row['network'] else row['kind']
        sent.add_row(kind, *map(str, counts), *(f'{figure:.2f}' for figure in figures))
    return [table for table in (parts, sent) if table.row_count]
