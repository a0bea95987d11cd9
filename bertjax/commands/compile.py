"""run=compile: compile the train step for a TPU slice that need not be attached; say whether it fits."""

import json
import math
import pathlib
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.cost.memory_search import MemorySearch, flags_of
from bertjax.cost.step_cost import cost_lines, cost_tables
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.pretrain.settings import PretrainingPhase, pretraining_settings
from bertjax.pretrain.warm_start import with_architecture
from bertjax.terminal import Console

VERB = Verb(needs='corpus', teacher=False, bucket='look')


def run(config: ConfigDict, workdir: str, overridden: Collection[str] = ()) -> None:
    """Compiles every phase that has steps; the file has the figures of the hungriest phase, and of each.

    With config.find_batch the largest batch of each phase is looked for. For a phase that does not fit, other ways to
    compute the same are compiled too.

    Args:
      config: of a pre-training.
      workdir: where the file goes.
      overridden: keys that the command line sets one by one.

    Raises:
      UserError: an unknown topology, no libtpu, a mesh or a batch that does not fit the number of chips; a phase that
        does not fit the memory of a chip, after the file is written.
    """
    settings = with_architecture(pretraining_settings(config), pathlib.Path(workdir), overridden)
    if not settings.topology:
        raise UserError('config.topology', 'nothing', 'a TPU slice', 'for example --config.topology=v5e:4x4')
    fitting = MemorySearch(settings, settings.topology)
    console = Console(highlight=False, soft_wrap=True)
    results, errors = [], []
    for phase in settings.resolve_phases(settings.total_steps(None)):
        if phase.first_step == phase.last_step:
            continue
        console.print(f'phase {phase.number}: compiling for {settings.topology} …', markup=False)
        compiled = []
        for result in fitting.batches(phase) if settings.find_batch else [fitting.compile(phase)]:
            compiled.append(result)
            console.print(_line(result), markup=False)
            _print_cost(result, console)
        # Of the batches that fit the largest; the phase's own where none does.
        result = max((one for one in compiled if one['fits']), key=_batch_size, default=compiled[0])
        if settings.find_batch and result['fits']:
            console.print(f'  the largest batch that fits: {result["batch_size"]}', markup=False)
        if not result['fits']:
            result['tried'] = _try_others(fitting, phase, result, console)
            errors.append(_error(fitting, phase, result))
        results.append(result)
    # The compiler does not always say how much is too much.
    worst = max(results, key=lambda result: result['hbm_bytes_per_chip'] or math.inf)
    report = {
        'topology': settings.topology,
        'chips': len(fitting.devices),
        **worst,
        'fits': not errors,
        'phases': results,
    }
    path = pathlib.Path(workdir) / 'compile.json'
    write_atomic(path, json.dumps(report, indent=2) + '\n')
    console.print(f'written to {path}', markup=False)
    if errors:
        raise errors[0]


def _print_cost(result: dict[str, Any], console: Console) -> None:
    """Time and traffic of a step that fits."""
    if result['fits']:
        for line in cost_lines(result):
            console.print(line, markup=False)
        for table in cost_tables(result):
            console.print(table)


def _try_others(
    fitting: MemorySearch, phase: PretrainingPhase, result: dict[str, Any], console: Console
) -> list[dict[str, Any]]:
    """Other ways to compute a phase that does not fit: {flags, fits, hbm_bytes_per_chip} of each; printed."""
    tried = []
    for way, other in fitting.remedies(phase, result):
        flags, needed = flags_of(way, fitting.settings, phase), other['hbm_bytes_per_chip']
        tried.append({'flags': flags, 'fits': other['fits'], 'hbm_bytes_per_chip': needed})
        console.print(f'  with {flags}: {_fits(other)}, {_gib(needed)} a chip', markup=False)
    return tried


def _error(fitting: MemorySearch, phase: PretrainingPhase, result: dict[str, Any]) -> UserError:
    fitting_ways = [f'{t["flags"]} ({_gib(t["hbm_bytes_per_chip"])})' for t in result['tried'] if t['fits']]
    if fitting_ways:
        fix = f'compiled just now, and fits: {"; or ".join(fitting_ways)}'
    else:
        fix = 'nothing that was tried fits: compile for more chips, or make the model smaller'
    return UserError(
        f'config.topology={fitting.topology}',
        f'phase {phase.number} of {phase.batch_size} x {phase.seq_len}, which needs '
        f'{_gib(result["hbm_bytes_per_chip"])} a chip',
        f'at most {_gib(result["hbm_bytes_available"])}',
        fix,
    )


def _batch_size(result: dict[str, Any]) -> int:
    return result['batch_size']


def _fits(result: dict[str, Any]) -> str:
    return 'fits' if result['fits'] else 'DOES NOT FIT'


def _gib(value: int | None) -> str:
    return '? GiB' if value is None else f'{value / 2**30:.2f} GiB'


def _line(result: dict[str, Any]) -> str:
    parts = f' in {result["grad_accum_steps"]} parts' if result['grad_accum_steps'] > 1 else ''
    collectives = result['collectives'] or 'none'
    return (
        f'phase {result["phase"]}, batch {result["batch_size"]} x {result["seq_len"]}{parts}: {_fits(result)}, '
        f'{_gib(result["hbm_bytes_per_chip"])} a chip of {_gib(result["hbm_bytes_available"])} '
        f'(parameters {_gib(result["parameters_bytes"])}, optimiser {_gib(result["optimizer_bytes"])}, '
        f'temporary {_gib(result["temporary_bytes"])}), collectives {collectives}'
    )
