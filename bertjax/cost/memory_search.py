"""Whether the train step of a phase fits a TPU slice or GPUs, and what would make it fit: found by compiling it.

What is tried leaves what is learned as it is, but for the order of sums: the parts that a batch is processed in, what
the backward pass recomputes, and how the mesh splits the weights.
"""

import dataclasses
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.cost.step_cost import step_cost
from bertjax.model.config import train_flops_per_sequence
from bertjax.model.encoder import resolve_remat
from bertjax.parallel.compiler_flags import FLAGS
from bertjax.parallel.gpu_targets import UNTIMED
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.topology import generation_of, topology_devices
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingPhase, PretrainingSettings
from bertjax.train.health.throughput import peak_flops
from bertjax.train.settings import check_row_count
from bertjax.train.setup import Setup

TRIES = 3  # compiles, at most, for each way to need less memory

# Values of config.model.remat: each keeps less than the one before.
REMAT_BY_MEMORY = ('none', 'elementwise', 'dots', 'full')

MemoryPlan = dict[str, Any]  # how to compute a phase: keys of the config, with values
CompileResult = dict[str, Any]  # the figures of a compiled phase, see docs/scaling.md


class MemorySearch:
    """A pre-training and a TPU slice, which need not be there.

    Args:
      settings: of the pre-training; it needs no text.
      topology: the slice, see `parallel.topology.topology_devices`.

    Raises:
      UserError: an unknown topology, no libtpu, a mesh that does not fit the number of chips or the model.
    """

    def __init__(self, settings: PretrainingSettings, topology: str):
        self.settings, self.topology = settings, topology
        self.devices = topology_devices(topology)
        self._setups: dict[tuple, Setup] = {}
        self.setup({})

    @property
    def available(self) -> int:
        """Bytes of a device."""
        return generation_of(self.topology).hbm_bytes

    def setup(self, way: MemoryPlan) -> Setup:
        """The setup under the keys of `way`."""
        remat = way.get('model.remat', self.settings.model.remat)
        mesh = {axis: way.get(f'mesh.{axis}', size) for axis, size in self.settings.mesh_axes.items()}
        key = (remat, *mesh.values())
        if key not in self._setups:
            model = dataclasses.replace(self.settings.model, remat=remat)
            settings = dataclasses.replace(self.settings, model=model)
            config = settings.model_config(settings.vocab.size)
            self._setups[key] = build_pretraining_setup(settings, config, make_mesh(mesh, self.devices))
        return self._setups[key]

    def compile(self, phase: PretrainingPhase, way: MemoryPlan | None = None) -> CompileResult:
        """Compiles the step of a phase, by default in the config's own way.

        Returns:
          The figures of docs/scaling.md, with `fits` and, where that is false, what the compiler says is needed.

        Raises:
          UserError: a batch that does not divide over the chips.
        """
        way = way or {}
        setup = self.setup(way)
        phase = dataclasses.replace(phase, grad_accum_steps=way.get('grad_accum_steps', phase.grad_accum_steps))
        key = self.settings.given_phases[phase.number].keys['batch_size']
        check_row_count(phase.batch_size, phase.grad_accum_steps, row_shards(setup.mesh), key)
        known, compiled = self._known(setup, phase), compile_step(setup, phase)
        # The compiler of GPUs makes a program whatever it needs.
        compiled['fits'] &= (compiled['hbm_bytes_per_chip'] or 0) <= self.available
        text = compiled.pop('text', None)
        cost = step_cost(text, self.topology, known['flops'], known['peak_flops']) if text and compiled['fits'] else {}
        return {**known, **compiled, **cost}

    def _known(self, setup: Setup, phase: PretrainingPhase) -> dict[str, Any]:
        """What is known before compiling."""
        flops = train_flops_per_sequence(setup.model.config, phase.seq_len, phase.max_predictions)
        return {
            'phase': phase.number,
            'batch_size': phase.batch_size,
            'seq_len': phase.seq_len,
            'grad_accum_steps': phase.grad_accum_steps,
            'hbm_bytes_available': self.available,
            'parameters_bytes': _shard_bytes(setup.state.params),
            'optimizer_bytes': _shard_bytes(setup.state.opt_state),
            # By formula: without what is recomputed, and what is padding.
            'flops': flops * phase.batch_size / len(self.devices),
            'peak_flops': peak_flops(self.devices[0].device_kind),
            'collectives': {},
            # Of what does not fit nothing is claimed.
            'estimated_step_s': None,
            'mfu_estimate': None,
            'modelled_share': None,
        }

    def batches(self, phase: PretrainingPhase) -> Iterator[CompileResult]:
        """The results of a phase's own batch, then of twice as many rows until they do not fit; or, where its own does
        not, of half as many rows a chip, rounded down, until they fit or there is one."""
        result = self.compile(phase)
        yield result
        smallest = phase.grad_accum_steps * row_shards(self.setup({}).mesh)
        grows = result['fits']
        while result['fits'] == grows and (grows or phase.batch_size > smallest):
            rows = phase.batch_size * 2 if grows else phase.batch_size // smallest // 2 * smallest
            phase = dataclasses.replace(phase, batch_size=rows)
            result = self.compile(phase)
            yield result

    def remedies(self, phase: PretrainingPhase, result: CompileResult) -> Iterator[tuple[MemoryPlan, CompileResult]]:
        """Compiles other ways to compute a phase that does not fit.

        More parts of a batch, more recomputing and weights split over more chips: of each the mildest that fits, with
        at most TRIES compiles; where none of the three fits, all of them together.

        Args:
          phase: that does not fit.
          result: of `compile`.
        """
        fitted = False
        for ways in (self._parts(phase, result), self._recomputed(), self._split(result)):
            for way, tried in self._until_one_fits(phase, ways[:TRIES]):
                fitted |= tried['fits']
                yield way, tried
        if not fitted:
            most: MemoryPlan = {'grad_accum_steps': phase.grad_accum_steps * self._rows(phase), 'model.remat': 'full'}
            yield from self._until_one_fits(phase, [most, *({**most, **mesh} for mesh in self._meshes()[-1:])])

    def _until_one_fits(
        self, phase: PretrainingPhase, ways: Sequence[MemoryPlan]
    ) -> Iterator[tuple[MemoryPlan, CompileResult]]:
        for way in ways:
            tried = self.compile(phase, way)
            yield way, tried
            if tried['fits']:
                return

    def _parts(self, phase: PretrainingPhase, result: CompileResult) -> list[MemoryPlan]:
        """More parts of a batch: from the count on before the first that should be enough."""
        rows, fixed, available = self._rows(phase), _fixed_bytes(result), result['hbm_bytes_available']
        counts = [n for n in range(2, rows + 1) if rows % n == 0]
        enough = [i for i, n in enumerate(counts) if fixed + (_needed(result) - fixed) / n <= available]
        first = max(min(enough, default=len(counts) - 1) - 1, 0)
        return [{'grad_accum_steps': phase.grad_accum_steps * n} for n in counts[first:]]

    def _recomputed(self) -> list[MemoryPlan]:
        """More recomputing, the mildest first."""
        remat = resolve_remat(self.setup({}).model.config, self.devices[0].platform)
        return [{'model.remat': more} for more in REMAT_BY_MEMORY[REMAT_BY_MEMORY.index(remat) + 1 :]]

    def _split(self, result: CompileResult) -> list[MemoryPlan]:
        """Weights and optimiser split over chips, if these are what does not fit."""
        fixed, axis = _fixed_bytes(result), self._axis('fsdp')
        rest = _needed(result) - fixed
        ways = self._meshes()
        return [way for way in ways if rest + fixed * axis / way['mesh.fsdp'] <= result['hbm_bytes_available']]

    def _rows(self, phase: PretrainingPhase) -> int:
        """Rows of a part of a batch on a chip."""
        return phase.batch_size // phase.grad_accum_steps // row_shards(self.setup({}).mesh)

    def _axis(self, name: str) -> int:
        return self.setup({}).mesh.shape[name]

    def _meshes(self) -> list[MemoryPlan]:
        """More chips on the fsdp axis, by powers of two, at the cost of the data axis: rows are split as before."""
        own, data, width = self._axis('fsdp'), self._axis('data'), self.settings.model.width
        factors = [2**i for i in range(1, 11) if data % 2**i == 0 and width % (own * 2**i) == 0]
        rest = self.settings.mesh_axes['data'] == -1  # it is what the others leave
        return [{'mesh.fsdp': own * n, **({} if rest else {'mesh.data': data // n})} for n in factors]


def compile_step(setup: Setup, phase: PretrainingPhase) -> dict[str, Any]:
    """What the compiler says of a phase's step: whether it fits, bytes a chip, and the compiled text.

    The text is libtpu's own: jaxlib cannot write every program that libtpu makes (on v6e a gather that runs on the
    SparseCore beside the rest, jaxlib 0.10.2 with libtpu 0.0.52).
    """
    (lowered,) = setup.lower(phase, phase.batches).values()
    if setup.mesh.devices.flat[0].platform != 'tpu':
        compiled = lowered.compile({**FLAGS, **UNTIMED})
        return {'fits': True, **_analyses(compiled), 'text': compiled.as_text()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled = lowered.compile({'xla_dump_to': folder, 'xla_dump_hlo_as_text': True})
        except jax.errors.JaxRuntimeError as error:
            if 'RESOURCE_EXHAUSTED' not in str(error):
                raise
            return {'fits': False, **_said(str(error)), 'temporary_bytes': None}
        (text,) = Path(folder).glob('*.after_codegen.txt')
        return {'fits': True, **_analyses(compiled), 'text': text.read_text(encoding='utf-8')}


def _analyses(compiled: jax.stages.Compiled) -> dict[str, float | None]:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        'hbm_bytes_per_chip': used + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        'temporary_bytes': memory.temp_size_in_bytes,
        'compiled_flops': cost.get('flops'),
        'accessed_bytes': cost.get('bytes accessed'),
    }


def flags_of(way: MemoryPlan, settings: PretrainingSettings, phase: PretrainingPhase) -> str:
    """`way` on the command line; the parts of a batch are those of the phase alone, where the config has phases."""
    own = f'phases[{phase.number}].' if settings.phases else ''
    flags = [f'--config.{own if key == "grad_accum_steps" else ""}{key}={value}' for key, value in way.items()]
    return ' '.join(f"'{flag}'" if '[' in flag else flag for flag in flags)


def _needed(result: CompileResult) -> int:
    """Bytes a chip; where the compiler does not say, twice what there is."""
    return result['hbm_bytes_per_chip'] or 2 * result['hbm_bytes_available']


def _fixed_bytes(result: CompileResult) -> int:
    """Parameters, optimiser and gradients, whatever the batch."""
    return 2 * result['parameters_bytes'] + result['optimizer_bytes']


def _shard_bytes(tree: Any) -> int:
    """Bytes that one chip holds of an abstract tree with shardings."""
    leaves = jax.tree.leaves(tree)
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in leaves)


def _said(message: str) -> dict[str, int | None]:
    """How much the compiler says that the step needs, and what of a chip's memory it gives to a program.

    `Used 67.70G of 15.75G hbm`, or `... required for HLO temporaries (1.66T) exceeds available HBM (15.75G)`.
    """
    size = r'\(?([\d.]+)([KMGT])\b'
    match = re.search(rf'{size}\)? (?:exceeds|of)(?:[^\d]*?{size})?', message)
    if not match:
        return {'hbm_bytes_per_chip': None}
    wanted, given = (
        round(float(number) * 2 ** {'K': 10, 'M': 20, 'G': 30, 'T': 40}[unit]) if number else None
        for number, unit in (match.group(1, 2), match.group(3, 4))
    )
    return {'hbm_bytes_per_chip': wanted, **({'hbm_bytes_available': given} if given else {})}
