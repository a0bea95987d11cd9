"""The cost of a compiled step for run=compile: what compile.json has of it, and the tables that are printed."""

import collections
from typing import Any

from rich import box
from rich.table import Table

from bertjax.cost import buffers
from bertjax.cost.estimate import EFFICIENCY, Estimate, Rates, estimate
from bertjax.cost.hlo import parse
from bertjax.parallel.topology import generation_of, ici_bandwidth, slice_chips

MOST_GROUPS = 10
MOST_BUFFERS = 8


def step_cost(text: str, topology: str, flops: float, peak_flops: float) -> dict[str, Any]:
    """Time, memory and traffic of a step, from its compiled text: the figures of docs/performance.md, all estimates.

    Args:
      text: the compiled module, as the compiler writes it.
      topology: the slice that it was compiled for.
      flops: of a step, a chip, by formula.
      peak_flops: of a chip, a second.

    Returns:
      For compile.json. Where the text is not one that we can read, as the compiler promises nothing about it, only
      `estimate_error`, why.
    """
    chip = generation_of(topology)
    links = lambda group: ici_bandwidth(topology, group)  # noqa: E731
    rates = Rates(chip.clock_hz, peak_flops, chip.hbm_bandwidth, links, chip.network_bandwidth)
    try:
        module = parse(text)
        found = estimate(module, rates, slice_chips(topology))
        alive = buffers.fullest(module)
    except (ValueError, LookupError, StopIteration, AttributeError) as error:
        return {'estimate_error': f'{type(error).__name__}: {error}'}
    counts = collections.Counter(each.collective.kind for each in found.sent)
    return {
        'collectives': dict(sorted(counts.items())),
        'estimated_step_s': found.step_s,
        'mfu_estimate': flops / peak_flops / found.step_s if found.step_s else None,
        'modelled_share': found.modelled_share,
        'activations_bytes': buffers.stored([buffer for buffer in alive if buffer.is_forward]),
        'largest_buffers': _largest(alive),
        'estimate': {
            'compiler_s': found.seconds('compiler'),
            'kernels_s': found.seconds('kernel'),
            'without_estimate_s': found.seconds('other'),
            'exposed_collectives_s': found.seconds('exposed'),
            'clock_hz': chip.clock_hz,
            'product_flops': found.flops,
            'hbm_traffic_bytes': found.bytes,
            'unknown_loops': list(found.unknown_loops),
            'silent_kernels': list(found.silent_kernels),
        },
        'groups': [{'group': name, 'seconds': whole, 'mixed_s': mixed} for name, whole, mixed in found.groups()],
        'sent': _sent(found),
    }


def _largest(alive: list[buffers.Buffer]) -> list[dict[str, Any]]:
    """Equal arrays of one origin are one entry."""
    counted: dict[tuple[str, str, int], int] = collections.Counter()
    for buffer in alive:
        counted[str(buffer.array), _module_of(buffer.op_name), buffer.array.stored_bytes] += 1
    ordered = sorted(counted.items(), key=lambda item: -item[0][2] * item[1])[:MOST_BUFFERS]
    return [
        {'array': array, 'from': origin, 'count': count, 'bytes': count * size}
        for (array, origin, size), count in ordered
    ]


def _module_of(op_name: str) -> str:
    """'jit(step)/jvp(Model)/encoder/while/body/closed_call/layers/mlp/up/add' -> 'layers/mlp/up/add'."""
    kept = [part for part in op_name.split('/') if not part.startswith(('jit(', 'jvp(', 'transpose(', 'while', 'body'))]
    return '/'.join(kept[-4:]).rpartition('closed_call/')[2] or '(unnamed)'


def _sent(found: Estimate) -> list[dict[str, Any]]:
    """By kind and size of group."""
    rows: dict[tuple[str, int, bool], dict[str, Any]] = {}
    for each in found.sent:
        kind, chips, network = each.collective.kind, each.collective.chips, each.collective.network
        empty = {
            'kind': kind,
            'chips': chips,
            'network': network,
            'count': 0,
            'async': 0,
            'bytes': 0.0,
            'seconds': 0.0,
            'exposed_s': 0.0,
        }
        row = rows.setdefault((kind, chips, network), empty)
        row['count'] += each.times
        row['async'] += each.times * each.is_async
        row['bytes'] += each.times * each.collective.sent
        row['seconds'] += each.times * each.seconds
        row['exposed_s'] += each.times * each.exposed
    return sorted(rows.values(), key=lambda row: -row['seconds'])


def cost_lines(result: dict[str, Any]) -> list[str]:
    """What a result of `step_cost` says in words, beginning with its time."""
    if 'estimate_error' in result:
        return [f'  no estimate: the text of this compiler could not be read ({result["estimate_error"]})']
    if not result.get('estimated_step_s'):
        return ['  no estimate: the compiler gives no cycles']
    parts, step = result['estimate'], result['estimated_step_s']
    exposed, without = parts['exposed_collectives_s'], parts['kernels_s'] + parts['without_estimate_s']
    lines = [
        f'  estimated, not measured: {1e3 * step:.1f} ms a step, {100 * result["mfu_estimate"]:.0f} % MFU',
        f'  of it by the compiler {1e3 * parts["compiler_s"]:.1f} ms ({parts["clock_hz"] / 1e9:g} GHz); modelled '
        f'{100 * result["modelled_share"]:.0f} %: kernels and the like {1e3 * without:.1f} ms '
        f'(at {100 * EFFICIENCY:.0f} % of the peak or of the bandwidth), exposed collectives {1e3 * exposed:.1f} ms',
    ]
    if loops := parts['unknown_loops']:
        lines.append(f'  at least: nobody knows how often {len(loops)} of its loops run; each is counted once')
    if kernels := parts['silent_kernels']:
        lines.append(f'  at least: {len(kernels)} of its kernels state no FLOPs (cost_estimate); only bytes count')
    return lines


def cost_tables(result: dict[str, Any]) -> list[Table]:
    """The groups of a step, its collectives and its largest arrays."""
    if not result.get('estimated_step_s'):
        return []
    return [table for table in (_group_table(result), _sent_table(result), _buffer_table(result)) if table.row_count]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify='left' if name == columns[0] else 'right')
    return table


def _group_table(result: dict[str, Any]) -> Table:
    table = _table('where the time goes (estimated)', 'part of the step', 'ms', 'share', 'mixed, ms')
    step = result['estimated_step_s']
    for row in result['groups'][:MOST_GROUPS]:
        seconds, mixed = row['seconds'], row['mixed_s']
        table.add_row(row['group'], f'{1e3 * seconds:.2f}', f'{100 * seconds / step:.1f} %', f'{1e3 * mixed:.2f}')
    return table


def _sent_table(result: dict[str, Any]) -> Table:
    names = ('collective', 'chips', 'a step', 'async', 'MB sent', 'ms alone', 'ms exposed')
    table = _table('between the chips (estimated)', *names)
    for row in result['sent']:
        figures = (row['bytes'] / 1e6, 1e3 * row['seconds'], 1e3 * row['exposed_s'])
        counts = (row['chips'], row['count'], row['async'])
        where = f'{row["kind"]}, between slices' if row['network'] else row['kind']
        table.add_row(where, *map(str, counts), *(f'{figure:.2f}' for figure in figures))
    return table


def _buffer_table(result: dict[str, Any]) -> Table:
    table = _table('the largest arrays, when memory is fullest', 'what', 'from', 'count', 'MiB')
    for row in result['largest_buffers']:
        table.add_row(row['array'], row['from'], str(row['count']), f'{row["bytes"] / 2**20:.1f}')
    return table
