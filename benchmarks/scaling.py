"""Step time against chips up to 1,024, on paper: from two reports of run=compile, by arithmetic.

    python benchmarks/scaling.py out/rows32/compile.json out/rows64/compile.json

The reports are of one model on one slice with two or more batches (`--config.batch_size=…`, grad_accum_steps 1, data
parallel). What a chip computes is taken to be a + b x its rows, fitted to them. What chips send each other goes over
the slice's links as docs/performance.md has it, and between slices over the data centre's network: reduced inside a
slice, each chip exchanging its share with its like in the others. Exposed is the share that it is in the last report.

Left out: latency, and waiting for the slowest. Nothing here is measured.

Prints the step with the rows a chip of the last report, then for each global batch the most chips of which the last
doubling still makes training WORTH times as fast: by data, and with `--blocks` and `--width` of the model also by
tensor parallelism over 2 to 8 chips of a side. What a chip computes is then taken to be divided, too, and the
activations of a block to be summed four times over these chips, in bfloat16.

With `--published` the reports are of BERT-large at S=512, and stand beside what MLPerf's logs say of such steps.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags
from rich import box
from rich.console import Console
from rich.table import Table

from bertjax.cost.collectives import SENT_SHARES
from bertjax.parallel.topology import GENERATIONS, ici_bandwidth, slice_chips

_BATCHES = flags.DEFINE_list('batches', ['256', '1024', '4096', '8192', '32768'], 'Global batches.')
_WORTH = flags.DEFINE_float('worth', 1.5, 'What a doubling of the chips has to bring.')

_BLOCKS = flags.DEFINE_integer('blocks', 0, 'Of the model, for tensor parallelism.')
_WIDTH = flags.DEFINE_integer('width', 0, 'Of the model, for tensor parallelism.')
_PUBLISHED = flags.DEFINE_bool('published', False, 'Print what MLPerf measured beside it.')

_FLAT = ('4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8', '8x8x16')
SLICES: Mapping[str, Sequence[str]] = {'v5e': _FLAT, 'v6e': _FLAT, 'v4': _CUBES, 'v5p': _CUBES}
MOST_CHIPS = 1024


class Published(NamedTuple):
    """A step of BERT-large at S=512 with 76 predictions that somebody has measured.

    Attributes:
      system: as the results name it.
      generation: of its chips.
      chips: ... and how many, of one slice.
      batch: sequences of a step.
      seconds: of one.
    """

    system: str
    generation: str
    chips: int
    batch: int
    seconds: float


# github.com/mlcommons/training_results_v0.7, Google/results/SYSTEM/bert/result_0.txt: the median of its blocks of 163
# steps (53.93 and 18.17 s), an evaluation of 10,000 and 12,288 sequences in each; chips: Google/systems/SYSTEM.json.
PUBLISHED = (
    Published('tpu-v4-128-TF', 'v4', 64, 3072, 53.93 / 163),
    Published('tpu-v4-512-TF', 'v4', 256, 3072, 18.17 / 163),
)


class Model:
    """Seconds of a step by chips and rows a chip.

    Attributes:
      rows: a chip, of the last report.
      fixed: seconds of a chip that do not depend on its rows.
      per_row: seconds of each of its rows.
      exposed: share of the exchange that is waited for.
      seq_len: S.
    """

    def __init__(self, reports: Sequence[Mapping[str, Any]]):
        last = reports[-1]
        self.generation = last['topology'].partition(':')[0]
        rows = [report['batch_size'] / report['chips'] for report in reports]
        self.per_row, self.fixed = np.polyfit(rows, [_alone(report) for report in reports], 1)
        self.rows = rows[-1]
        self.seq_len = last['seq_len']
        self._flops = last['mfu_estimate'] * last['estimated_step_s'] / self.rows  # a row, in seconds at the peak
        # Bytes that are exchanged, whatever the number of chips.
        self._sent = [
            (SENT_SHARES[row['kind']], row['bytes'] / SENT_SHARES[row['kind']](row['chips'])) for row in last['sent']
        ]
        seconds = sum(row['seconds'] for row in last['sent'])
        self.exposed = sum(row['exposed_s'] for row in last['sent']) / seconds if seconds else 0.0

    def slices(self, chips: int) -> tuple[str, int]:
        """The form of the slices that have so many chips together, and how many slices they are."""
        shapes = {slice_chips(f'{self.generation}:{shape}'): shape for shape in SLICES[self.generation]}
        largest = min(max(shapes), chips)
        return f'{self.generation}:{shapes[largest]}', chips // largest

    def exchange(self, chips: int) -> float:
        """Seconds that are waited for others, where each has its own rows."""
        name, slices = self.slices(chips)
        inside = chips // slices
        seconds = sum(sent(inside) * size for sent, size in self._sent) / ici_bandwidth(name, inside)
        if slices > 1:
            network = GENERATIONS[self.generation].network_bandwidth
            seconds += sum(sent(slices) * size / inside for sent, size in self._sent) / network
        return self.exposed * seconds

    def step(self, chips: int, rows: float, tensor: int = 1, activation: float = 0.0) -> float:
        """Seconds of a step.

        Args:
          chips: all of them.
          rows: a chip, of all rows by all chips.
          tensor: chips that share rows and parameters.
          activation: bytes of a row's activations that are summed over them in a step.
        """
        seconds = self.fixed / tensor + self.per_row * rows + self.exchange(chips) / tensor
        if tensor > 1:
            seconds += (
                SENT_SHARES['all-reduce'](tensor)
                * activation
                * rows
                * tensor
                / ici_bandwidth(self.slices(chips)[0], tensor)
            )
        return seconds

    def share(self, rows: float, seconds: float) -> float:
        """Model FLOPs of a chip's rows by peak and time."""
        return self._flops * rows / seconds


def _alone(report: Mapping[str, Any]) -> float:
    """Seconds of a step without what is waited for others."""
    return report['estimated_step_s'] - report['estimate']['exposed_collectives_s']


def _read(paths: Sequence[str]) -> list[dict[str, Any]]:
    reports = sorted((json.loads(pathlib.Path(path).read_text()) for path in paths), key=lambda one: one['batch_size'])
    if len({one['batch_size'] for one in reports}) < 2 or len({one['topology'] for one in reports}) > 1:
        raise app.UsageError('give two or more compile.json of one slice, with different batches')
    if any('*' in one['topology'] for one in reports):
        raise app.UsageError('give compile.json of one slice; several are reckoned here')
    if any(one['grad_accum_steps'] > 1 for one in reports):
        raise app.UsageError('give compile.json of steps that are not accumulated: --config.grad_accum_steps=1')
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
    tensors = (1, 2, 4, 8) if _BLOCKS.value and _WIDTH.value else (1,)
    activation = 4 * _BLOCKS.value * model.seq_len * _WIDTH.value * 2
    table = _table(title, 'batch', *(['tensor'] if len(tensors) > 1 else []), 'chips', 'rows a chip', 'step, ms', 'MFU')
    for batch in map(int, _BATCHES.value):
        for tensor in tensors:
            seconds = lambda chips, t=tensor, b=batch: model.step(chips, b / chips, t, activation)  # noqa: E731
            chips = counts[0]
            while chips * 2 <= min(batch * tensor, MOST_CHIPS) and (
                seconds(chips) >= _WORTH.value * seconds(2 * chips)
            ):
                chips *= 2
            figures = (f'{1e3 * seconds(chips):.1f}', f'{100 * model.share(batch / chips, seconds(chips)):.0f} %')
            named = [str(tensor)] if len(tensors) > 1 else []
            table.add_row(f'{batch:,}', *named, str(chips), f'{batch / chips:g}', *figures)
    console.print(table)
    if _PUBLISHED.value:
        table = _table(
            'beside MLPerf v0.7', 'system', 'chips', 'batch', 'rows a chip', 'measured, ms', 'estimated', 'off'
        )
        for one in PUBLISHED:
            if one.generation == model.generation:
                rows, reckoned = one.batch / one.chips, model.step(one.chips, one.batch / one.chips)
                off = f'{100 * (reckoned / one.seconds - 1):+.0f} %'
                counted = (str(one.chips), f'{one.batch:,}', f'{rows:g}')
                table.add_row(one.system, *counted, f'{1e3 * one.seconds:.1f}', f'{1e3 * reckoned:.1f}', off)
        console.print(table)


def _figures(model: Model, chips: int, rows: float) -> tuple[str, str]:
    seconds = model.step(chips, rows)
    return f'{1e3 * seconds:.1f}', f'{100 * model.share(rows, seconds):.0f} %'


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, justify='right')
    return table


if __name__ == '__main__':
    app.run(main)
