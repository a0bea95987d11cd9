"""Step time against chips up to 1,024, on paper: from two reports of run=compile, by arithmetic.

    python benchmarks/scaling.py out/rows32/compile.json out/rows64/compile.json

The reports are of one model on one slice with two or more batches (`--config.batch_size=…`, accumulate 1, data
parallel). What a chip computes is taken to be a + b x its rows, fitted to them. What chips send each other goes over
the slice's links as docs/performance.md has it, and between slices over the data centre's network: reduced inside a
slice, each chip exchanging its share with its like in the others. Exposed is the share that it is in the last report.

Left out: latency, and waiting for the slowest. Nothing here is measured.

Prints the step with the rows a chip of the last report, then for each global batch the most chips of which the last
doubling still makes training WORTH times as fast.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags
from rich import box
from rich.console import Console
from rich.table import Table

from bertjax.cost.collectives import SENT
from bertjax.parallel.topology import ici_bandwidth, slice_chips

_BATCHES = flags.DEFINE_list('batches', ['256', '1024', '4096', '8192', '32768'], 'Global batches.')
_WORTH = flags.DEFINE_float('worth', 1.5, 'What a doubling of the chips has to bring.')

_FLAT = ('4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8', '8x8x16')
SLICES: Mapping[str, Sequence[str]] = {'v5e': _FLAT, 'v6e': _FLAT, 'v4': _CUBES, 'v5p': _CUBES}
# Bytes a second and chip between slices: "data center network bandwidth per Pod", 6.4 and 25.6 Tbit/s for 256 chips
# (docs.cloud.google.com/tpu/docs/v5e, v6e). A slice of the others has all the chips that are asked for here.
DCN = {'v5e': 6.4e12 / 8 / 256, 'v6e': 25.6e12 / 8 / 256}
MOST_CHIPS = 1024


class Model:
    """Seconds of a step by chips and rows a chip.

    Attributes:
      rows: a chip, of the last report.
      fixed: seconds of a chip that do not depend on its rows.
      per_row: seconds of each of its rows.
      exposed: share of the exchange that is waited for.
    """

    def __init__(self, reports: Sequence[Mapping[str, Any]]):
        last = reports[-1]
        self.generation = last['topology'].partition(':')[0]
        rows = [report['batch_size'] / report['chips'] for report in reports]
        self.per_row, self.fixed = np.polyfit(rows, [_alone(report) for report in reports], 1)
        self.rows = rows[-1]
        self._flops = last['mfu_estimate'] * last['estimated_step_s'] / self.rows  # a row, in seconds at the peak
        # Bytes that are exchanged, whatever the number of chips.
        self._sent = [(SENT[row['kind']], row['bytes'] / SENT[row['kind']](row['chips'])) for row in last['sent']]
        seconds = sum(row['seconds'] for row in last['sent'])
        self.exposed = sum(row['exposed_s'] for row in last['sent']) / seconds if seconds else 0.0

    def slices(self, chips: int) -> tuple[str, int]:
        """The form of the slices that have so many chips together, and how many slices they are."""
        shapes = {slice_chips(f'{self.generation}:{shape}'): shape for shape in SLICES[self.generation]}
        largest = min(max(shapes), chips)
        return f'{self.generation}:{shapes[largest]}', chips // largest

    def exchange(self, chips: int) -> float:
        """Seconds that are waited for others."""
        name, slices = self.slices(chips)
        inside = chips // slices
        seconds = sum(sent(inside) * size for sent, size in self._sent) / ici_bandwidth(name, inside)
        if slices > 1:
            seconds += sum(sent(slices) * size / inside for sent, size in self._sent) / DCN[self.generation]
        return self.exposed * seconds

    def step(self, chips: int, rows: float) -> float:
        """Seconds of a step."""
        return self.fixed + self.per_row * rows + self.exchange(chips)

    def mfu(self, chips: int, rows: float) -> float:
        """Model FLOPs by peak and time."""
        return self._flops * rows / self.step(chips, rows)


def _alone(report: Mapping[str, Any]) -> float:
    """Seconds of a step without what is waited for others."""
    return report['estimated_step_s'] - report['estimate']['exposed_collectives_s']


def _read(paths: Sequence[str]) -> list[dict[str, Any]]:
    reports = sorted((json.loads(pathlib.Path(path).read_text()) for path in paths), key=lambda one: one['batch_size'])
    if len({one['batch_size'] for one in reports}) < 2 or len({one['topology'] for one in reports}) > 1:
        raise app.UsageError('give two or more compile.json of one slice, with different batches')
    if any(one['accumulate'] > 1 for one in reports):
        raise app.UsageError('give compile.json of steps that are not accumulated: --config.accumulate=1')
    if any(not one.get('estimated_step_s') for one in reports):
        raise app.UsageError('give compile.json that have an estimate of time')
    return reports


def main(argv: Sequence[str]) -> None:
    model = Model(_read(argv[1:]))
    console = Console(soft_wrap=True, width=100)
    console.print(
        f'a chip computes {1e3 * model.fixed:.1f} ms + {1e3 * model.per_row:.3f} ms a row; '
        f'{100 * model.exposed:.0f} % of the exchange is waited for (estimated)'
    )
    counts = [16 * 2**i for i in range(7)]
    names = ('chips', 'slices', 'batch', 'exchange, ms', 'step, ms', 'MFU', 'sequences/s')
    table = _table(f'{model.rows:g} rows a chip (estimated)', *names)
    for chips in counts:
        (name, slices), rows = model.slices(chips), model.rows
        rate = f'{chips * rows / model.step(chips, rows):,.0f}'
        exchange = f'{1e3 * model.exchange(chips):.1f}'
        table.add_row(
            str(chips), f'{slices} x {name}', f'{chips * rows:,g}', exchange, *_figures(model, chips, rows), rate
        )
    console.print(table)
    title = f'the last doubling of the chips makes it {_WORTH.value:g} times as fast (estimated)'
    table = _table(title, 'batch', 'chips', 'rows a chip', 'step, ms', 'MFU')
    for batch in map(int, _BATCHES.value):
        chips = counts[0]
        while chips * 2 <= min(batch, MOST_CHIPS) and (
            model.step(chips, batch / chips) >= _WORTH.value * model.step(2 * chips, batch / chips / 2)
        ):
            chips *= 2
        rows = batch / chips
        table.add_row(f'{batch:,}', str(chips), f'{rows:g}', *_figures(model, chips, rows))
    console.print(table)


def _figures(model: Model, chips: int, rows: float) -> tuple[str, str]:
    return f'{1e3 * model.step(chips, rows):.1f}', f'{100 * model.mfu(chips, rows):.0f} %'


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, justify='right')
    return table


if __name__ == '__main__':
    app.run(main)
