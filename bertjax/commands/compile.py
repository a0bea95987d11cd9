"""run=compile: compile the train step for TPUs or GPUs that need not be attached; print whether it fits in memory."""

import json
import math
import pathlib
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.cost.memory_search import MemorySearch, format_flags
from bertjax.cost.step_cost import cost_lines, cost_tables
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import display_path
from bertjax.pretrain.budget import find_plan
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.warm_start import with_architecture, with_existing_vocabulary
from bertjax.terminal import Console

VERB = Verb(needs='corpus', teacher=False, bucket='look')


def run(config: ConfigDict, workdir: str, flag_keys: Collection[str] = ()) -> None:
    """Compiles the train step of every phase, and writes WORKDIR/compile.json.

    The file has the results of each phase that has steps. Its top level repeats the results of the phase that needs the
    most memory, except that `fits` tells whether all phases fit. If no tried batch of a phase fits, the verb also
    compiles other ways to compute the step. For config.find_batch see `MemorySearch.batches`.

    Raises:
      UserError: The topology is empty or unknown, its compiler is missing, or the number of chips does not fit the
        mesh or the batch. Or a phase does not fit in the memory of a chip; the file is written before this error.
    """
    folder = pathlib.Path(workdir)
    settings = with_architecture(pretraining_settings(config), folder, flag_keys)
    settings = with_existing_vocabulary(settings, folder)
    if not settings.topology:
        raise UserError('config.topology', 'nothing', 'a TPU slice or GPUs', 'for example --config.topology=v5e:4x4')
    console = Console(highlight=False, soft_wrap=True)
    plan = find_plan(settings, folder)
    if plan:
        settings = plan.with_sizes(settings, flag_keys)
    elif settings.architecture_from == 'budget':
        size = f'{settings.model.num_layers} layers of width {settings.model.width}, {settings.batch_size} rows'
        console.print(f'the run chooses the size and the batch that no key sets; compile uses {size}')
    search = MemorySearch(settings, settings.topology)
    results, errors = [], []
    for phase in settings.resolve_phases(settings.total_steps(None)):
        if phase.first_step == phase.last_step:
            continue
        console.print(f'phase {phase.number}: compiling for {settings.topology} …', markup=False)
        compiled = []
        for result in search.batches(phase) if settings.find_batch else [search.compile(phase)]:
            compiled.append(result)
            console.print(_format_result(result), markup=False)
            for part in (*cost_lines(result), *cost_tables(result)) if result['fits'] else ():
                console.print(part, markup=False)
        # The result for the largest tried batch that fits, or for the batch of the config if none fits.
        result = max(
            (result for result in compiled if result['fits']),
            key=lambda result: result['batch_size'],
            default=compiled[0],
        )
        if settings.find_batch and result['fits']:
            console.print(f'  the largest tried batch that fits is {result["batch_size"]}', markup=False)
        if not result['fits']:
            result['tried'] = _try_others(search, phase, result, console)
            errors.append(_error(search, phase, result))
        results.append(result)
    # A phase whose memory the compiler does not report counts as the worst.
    worst = max(results, key=lambda result: result['hbm_bytes_per_chip'] or math.inf)
    report = {'topology': settings.topology, 'chips': len(search.devices), **worst}
    report |= {'fits': not errors, 'phases': results}
    path = pathlib.Path(workdir) / 'compile.json'
    write_atomic(path, json.dumps(report, indent=2) + '\n')
    console.print(f'written to {display_path(path)}', markup=False)
    if errors:
        raise errors[0]


def _try_others(
    search: MemorySearch, phase: PretrainingPhase, result: dict[str, Any], console: Console
) -> list[dict[str, Any]]:
    """Compiles other ways to compute a phase that does not fit. Returns and prints the result of each way."""
    tried = []
    for way, other in search.search_plans(phase, result):
        flags, needed = format_flags(way, search.settings, phase), other['hbm_bytes_per_chip']
        tried.append({'flags': flags, 'fits': other['fits'], 'hbm_bytes_per_chip': needed})
        console.print(f'  with {flags}: {_fits(other)}, {_gib(needed)} per chip', markup=False)
    return tried


def _error(search: MemorySearch, phase: PretrainingPhase, result: dict[str, Any]) -> UserError:
    fitting_ways = [f'{t["flags"]} ({_gib(t["hbm_bytes_per_chip"])})' for t in result['tried'] if t['fits']]
    fix = 'none of the other settings that were tried fits: use more chips, or a smaller model'
    if fitting_ways:
        fix = f'these settings were compiled and fit: {"; or ".join(fitting_ways)}'
    needs = f'which needs {_gib(result["hbm_bytes_per_chip"])} per chip'
    found = f'phase {phase.number} with batch {phase.batch_size} x {phase.seq_len}, {needs}'
    expected = f'at most {_gib(result["hbm_bytes_available"])}'
    return UserError(f'config.topology={search.topology}', found, expected, fix)


def _fits(result: dict[str, Any]) -> str:
    return 'fits' if result['fits'] else 'DOES NOT FIT'


def _gib(value: int | None) -> str:
    return '? GiB' if value is None else f'{value / 2**30:.2f} GiB'


def _format_result(result: dict[str, Any]) -> str:
    parts = f' in {result["grad_accum_steps"]} parts' if result['grad_accum_steps'] > 1 else ''
    collectives = result['collectives'] or 'none'
    return (
        f'phase {result["phase"]}, batch {result["batch_size"]} x {result["seq_len"]}{parts}: {_fits(result)}, '
        f'{_gib(result["hbm_bytes_per_chip"])} per chip of {_gib(result["hbm_bytes_available"])} '
        f'(parameters {_gib(result["parameters_bytes"])}, optimizer {_gib(result["optimizer_bytes"])}, '
        f'temporary {_gib(result["temporary_bytes"])}), collectives {collectives}'
    )
