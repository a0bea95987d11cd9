"""run=compile: compiles the real train step for a TPU slice that need not be there; writes WORKDIR/compile.json."""

import collections
import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.experiment.pretraining import build_pretraining_setup
from bertjax.experiment.pretraining_settings import PretrainingPhase, pretraining_settings
from bertjax.experiment.settings import check_row_count
from bertjax.files.atomic import write_atomic
from bertjax.model.config import train_flops_per_sequence
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.topology import HBM_BYTES, topology_devices
from bertjax.terminal import Console
from bertjax.train.setup import Setup
from bertjax.train.throughput import peak_flops

COLLECTIVES = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute')


def run(config: ConfigDict, workdir: str) -> None:
    """Compiles every phase for config.topology; the file has the figures of the hungriest phase, and of each.

    With config.find_batch the batch of each phase is doubled as long as it fits, and the largest is reported.

    Raises:
      UserError: an unknown topology, no libtpu, a mesh or a batch that does not fit the number of chips.
    """
    settings = pretraining_settings(config)
    topology = settings.topology
    if not topology:
        raise UserError('config.topology', 'nothing', 'a TPU slice', 'for example --config.topology=v5e:4x4')
    devices = topology_devices(topology)
    model = settings.model(settings.vocab['size'])
    setup = build_pretraining_setup(settings, model, make_mesh(settings.mesh, devices))
    console = Console(highlight=False, soft_wrap=True)
    results = []
    for phase in settings.phases(settings.total_steps(None)):
        check_row_count(phase.batch_size, phase.accumulate, row_shards(setup.mesh))
        result = _largest(setup, phase, topology) if settings.find_batch else None
        result = result or compile_phase(setup, phase, topology)
        results.append(result)
        console.print(_line(result), markup=False)
    worst = max(results, key=lambda result: result['hbm_bytes_per_chip'] or 0)
    report = {
        'topology': topology,
        'chips': len(devices),
        **worst,
        'fits': all(result['fits'] for result in results),
        'phases': results,
    }
    path = pathlib.Path(workdir) / 'compile.json'
    write_atomic(path, json.dumps(report, indent=2) + '\n')
    console.print(f'written to {path}', markup=False)


def compile_phase(setup: Setup, phase: PretrainingPhase, topology: str) -> dict[str, Any]:
    """Compiles the step of one phase; its memory a chip in bytes, its FLOPs, its collectives."""
    state, chips = setup.state, setup.mesh.size
    found: dict[str, Any] = {
        'phase': phase.number,
        'batch_size': phase.batch_size,
        'seq_len': phase.seq_len,
        'fits': True,
        'hbm_bytes_per_chip': None,
        'hbm_bytes_available': HBM_BYTES[topology.partition(':')[0]],
        'parameters_bytes': _shard_bytes(state.params),
        'optimizer_bytes': _shard_bytes(state.opt_state),
        'temporary_bytes': None,
        # By formula: the compiler's own count takes the body of the scan over layers once.
        'flops': train_flops_per_sequence(setup.model.config, phase.seq_len, phase.max_predictions)
        * phase.batch_size
        / chips,
        'peak_flops': peak_flops(setup.mesh.devices.flat[0].device_kind),
        # The compiler's cycle counts leave out kernels and collectives: nothing is claimed about time yet.
        'estimated_step_s': None,
        'mfu_estimate': None,
        'modelled_share': None,
        'collectives': {},
    }
    try:
        (lowered,) = setup.lower(phase, phase.batches).values()
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if 'RESOURCE_EXHAUSTED' not in str(error):
            raise
        return {**found, 'fits': False, 'hbm_bytes_per_chip': _wanted_bytes(str(error))}
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    counts = collections.Counter(re.findall(rf'\b({"|".join(COLLECTIVES)})(?:-start)?\(', compiled.as_text()))
    return {
        **found,
        'hbm_bytes_per_chip': used + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        'temporary_bytes': memory.temp_size_in_bytes,
        'collectives': dict(sorted(counts.items())),
    }


def _shard_bytes(tree: Any) -> int:
    """Bytes that one chip holds of an abstract tree with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in leaves)


def _wanted_bytes(message: str) -> int | None:
    """How much the compiler says that the step needs: `... required for HLO temporaries (1.66T) exceeds ...`."""
    match = re.search(r'(?:\(|Used )([\d.]+)([KMGT])\)? (?:exceeds|of)', message)
    return round(float(match[1]) * 2 ** {'K': 10, 'M': 20, 'G': 30, 'T': 40}[match[2]]) if match else None


def _largest(setup: Setup, phase: PretrainingPhase, topology: str) -> dict[str, Any] | None:
    """The result for the largest batch, a power of two times the phase's, that fits; None where its own does not."""
    best = None
    while True:
        result = compile_phase(setup, phase, topology)
        if not result['fits']:
            return best
        best = result
        phase = dataclasses.replace(phase, batch_size=2 * phase.batch_size)


def _line(result: dict[str, Any]) -> str:
    gib = lambda value: '?' if value is None else f'{value / 2**30:.2f} GiB'  # noqa: E731
    return (
        f'phase {result["phase"]}, batch {result["batch_size"]} x {result["seq_len"]}: '
        f'{"fits" if result["fits"] else "DOES NOT FIT"}, {gib(result["hbm_bytes_per_chip"])} a chip '
        f'of {gib(result["hbm_bytes_available"])} (parameters {gib(result["parameters_bytes"])}, optimiser '
        f'{gib(result["optimizer_bytes"])}, temporary {gib(result["temporary_bytes"])}), '
        f'collectives {result["collectives"] or "none"}'
    )
