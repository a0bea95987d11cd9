"""Estimates the step time on up to 1,024 chips from two reports of run=compile.

    python benchmarks/scaling.py out/rows32/compile.json out/rows64/compile.json

The reports must be of one model on one slice with two or more batch sizes (`--config.batch_size=…`), data parallel and
with grad_accum_steps 1. The computation time of a chip is modeled as a + b x (rows per chip), fitted to the reports.
The communication time follows from the link bandwidths of docs/performance.md. Slices communicate over the data
center's network: after a reduction inside each slice, a chip exchanges its share with the corresponding chips of the
other slices. The exposed fraction of the communication is taken from the last report.

The model ignores latency and waiting for the slowest chip. The script measures nothing.

The script prints the step time with the rows per chip of the last report. Then it prints, for each global batch, the
largest number of chips for which the last doubling makes training at least WORTH times as fast, with data parallelism.
With `--blocks` and `--width` of the model, it also tries tensor parallelism over 2 to 8 chips. It assumes that tensor
parallelism divides the computation, and sums the activations of a block four times over these chips, in bfloat16.

With `--published`, the reports must be of BERT-large at S=512. The script compares them with the step times of MLPerf.
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

_BATCHES = flags.DEFINE_list('batches', ['256', '1024', '4096', '8192', '32768'], 'The global batch sizes.')
_WORTH = flags.DEFINE_float('worth', 1.5, 'The minimum speedup from doubling the chips.')

_BLOCKS = flags.DEFINE_integer('blocks', 0, 'The number of blocks of the model, for tensor parallelism.')
_WIDTH = flags.DEFINE_integer('width', 0, 'The width of the model, for tensor parallelism.')
_PUBLISHED = flags.DEFINE_bool('published', False, 'Compare with the measurements of MLPerf.')

_FLAT = ('4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8', '8x8x16')
SLICES: Mapping[str, Sequence[str]] = {'v5e': _FLAT, 'v6e': _FLAT, 'v4': _CUBES, 'v5p': _CUBES}
MOST_CHIPS = 1024


class Published(NamedTuple):
    """A published measurement of a step of BERT-large at S=512 with 76 predictions.

    Attributes:
      system: The name of the system in the results.
      generation: The generation of the chips.
      chips: The number of chips, of one slice.
      batch: The number of sequences per step.
      seconds: The time of a step.
    """

    system: str
    generation: str
    chips: int
    batch: int
    seconds: float


# Source: github.com/mlcommons/training_results_v0.7, Google/results/SYSTEM/bert/result_0.txt. The time is the median of
# a block of 163 steps (53.93 and 18.17 s), which includes an evaluation of 10,000 or 12,288 sequences.
# Google/systems/SYSTEM.json has the number of chips.
PUBLISHED = (
    Published('tpu-v4-128-TF', 'v4', 64, 3072, 53.93 / 163),
    Published('tpu-v4-512-TF', 'v4', 256, 3072, 18.17 / 163),
)


class Model:
    """A model of the step time as a function of the number of chips and the rows per chip.

    Attributes:
      rows: The rows per chip of the last report.
      fixed: The seconds of computation that do not depend on the rows.
      per_row: The seconds of computation per row.
      exposed: The fraction of the communication that does not overlap with computation.
      seq_len: S.
    """

    def __init__(self, reports: Sequence[Mapping[str, Any]]):
        last = reports[-1]
        self.generation = last['topology'].partition(':')[0]
        rows = [report['batch_size'] / report['chips'] for report in reports]
        self.per_row, self.fixed = np.polyfit(rows, [_computation_seconds(report) for report in reports], 1)
        self.rows = rows[-1]
        self.seq_len = last['seq_len']
        self._flops = last['mfu_estimate'] * last['estimated_step_s'] / self.rows  # seconds of a row at peak
        # Pairs: the function from the number of chips to the sent share, and bytes that do not depend on this number.
        self._sent = [
            (SENT_SHARES[row['kind']], row['bytes'] / SENT_SHARES[row['kind']](row['chips'])) for row in last['sent']
        ]
        seconds = sum(row['seconds'] for row in last['sent'])
        self.exposed = sum(row['exposed_s'] for row in last['sent']) / seconds if seconds else 0.0

    def slices(self, chips: int) -> tuple[str, int]:
        """Returns the topology of a slice, and the number of slices for `chips` chips in total."""
        shapes = {slice_chips(f'{self.generation}:{shape}'): shape for shape in SLICES[self.generation]}
        largest = min(max(shapes), chips)
        return f'{self.generation}:{shapes[largest]}', chips // largest

    def exchange(self, chips: int) -> float:
        """Returns the seconds of exposed communication per step with data parallelism."""
        name, slices = self.slices(chips)
        inside = chips // slices
        seconds = sum(sent(inside) * size for sent, size in self._sent) / ici_bandwidth(name, inside)
        if slices > 1:
            network = GENERATIONS[self.generation].network_bandwidth
            seconds += sum(sent(slices) * size / inside for sent, size in self._sent) / network
        return self.exposed * seconds

    def step(self, chips: int, rows: float, tensor: int = 1, activation: float = 0.0) -> float:
        """Returns the seconds of a step.

        Args:
          chips: The number of chips.
          rows: The total number of rows divided by the total number of chips.
          tensor: The number of chips that share rows and parameters.
          activation: The bytes of activations per row and step that are summed over these chips.
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

    def mfu(self, rows: float, seconds: float) -> float:
        return self._flops * rows / seconds


def _computation_seconds(report: Mapping[str, Any]) -> float:
    """Returns the seconds of a step without exposed communication."""
    return report['estimated_step_s'] - report['estimate']['exposed_collectives_s']


def _read(paths: Sequence[str]) -> list[dict[str, Any]]:
    reports = sorted((json.loads(pathlib.Path(path).read_text()) for path in paths), key=lambda x: x['batch_size'])
    batch_sizes, topologies = (len({report[key] for report in reports}) for key in ('batch_size', 'topology'))
    if batch_sizes < 2 or topologies > 1:
        raise app.UsageError('expected two or more compile.json of one slice with different batches')
    if any('*' in report['topology'] for report in reports):
        raise app.UsageError('expected compile.json of a single slice; the script computes several slices')
    if any(report['grad_accum_steps'] > 1 for report in reports):
        raise app.UsageError('expected compile.json of steps without accumulation: --config.grad_accum_steps=1')
    if any(not report.get('estimated_step_s') for report in reports):
        raise app.UsageError('expected compile.json with an estimate of the step time')
    return reports


def main(argv: Sequence[str]) -> None:
    model = Model(_read(argv[1:]))
    console = Console(soft_wrap=True, width=100)
    console.print(
        f'a chip computes {1e3 * model.fixed:.1f} ms + {1e3 * model.per_row:.3f} ms per row; '
        f'{100 * model.exposed:.0f} % of the communication is exposed (estimated)'
    )
    counts = [16 * 2**i for i in range(7)]
    names = ('chips', 'slices', 'batch', 'exposed, ms', 'step, ms', 'MFU', 'sequences/s')
    table = _table(f'{model.rows:g} rows per chip (estimated)', *names)
    for chips in counts:
        (name, slices), rows = model.slices(chips), model.rows
        rate = f'{chips * rows / model.step(chips, rows):,.0f}'
        exchange = f'{1e3 * model.exchange(chips):.1f}'
        table.add_row(
            str(chips), f'{slices} x {name}', f'{chips * rows:,g}', exchange, *_figures(model, chips, rows), rate
        )
    console.print(table)
    title = f'the last doubling of the chips makes training {_WORTH.value:g} times as fast (estimated)'
    tensors = (1, 2, 4, 8) if _BLOCKS.value and _WIDTH.value else (1,)
    activation = 4 * _BLOCKS.value * model.seq_len * _WIDTH.value * 2
    tensor_column = ['tensor'] if len(tensors) > 1 else []
    table = _table(title, 'batch', *tensor_column, 'chips', 'rows per chip', 'step, ms', 'MFU')
    for batch in map(int, _BATCHES.value):
        for tensor in tensors:
            seconds = lambda chips, t=tensor, b=batch: model.step(chips, b / chips, t, activation)  # noqa: E731
            chips = counts[0]
            while chips * 2 <= min(batch * tensor, MOST_CHIPS) and (
                seconds(chips) >= _WORTH.value * seconds(2 * chips)
            ):
                chips *= 2
            figures = (f'{1e3 * seconds(chips):.1f}', f'{100 * model.mfu(batch / chips, seconds(chips)):.0f} %')
            named = [str(tensor)] if len(tensors) > 1 else []
            table.add_row(f'{batch:,}', *named, str(chips), f'{batch / chips:g}', *figures)
    console.print(table)
    if _PUBLISHED.value:
        table = _table(
            'MLPerf v0.7', 'system', 'chips', 'batch', 'rows per chip', 'measured, ms', 'estimated, ms', 'error'
        )
        for result in PUBLISHED:
            if result.generation == model.generation:
                rows = result.batch / result.chips
                estimate = model.step(result.chips, rows)
                error = f'{100 * (estimate / result.seconds - 1):+.0f} %'
                counts = (str(result.chips), f'{result.batch:,}', f'{rows:g}')
                table.add_row(result.system, *counts, f'{1e3 * result.seconds:.1f}', f'{1e3 * estimate:.1f}', error)
        console.print(table)


def _figures(model: Model, chips: int, rows: float) -> tuple[str, str]:
    seconds = model.step(chips, rows)
    return f'{1e3 * seconds:.1f}', f'{100 * model.mfu(rows, seconds):.0f} %'


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(name, justify='right')
    return table


if __name__ == '__main__':
    app.run(main)
