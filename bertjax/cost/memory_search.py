"""Compiles the train step of a phase to find out whether it fits a TPU slice or GPUs, and which memory plan fits.

A plan changes the gradient accumulation steps, the remat policy or the mesh. It does not change the result of
training, except for the order of sums.
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
from bertjax.parallel.devices import GPU_FLAGS
from bertjax.parallel.mesh import make_mesh, row_shards, slice_count
from bertjax.parallel.topology import UNTIMED, generation_of, topology_devices
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.training.compiled_steps import StepLowering
from bertjax.training.health.throughput import peak_flops
from bertjax.training.settings import check_row_count
from bertjax.training.setup import Setup

TRIES = 3  # the maximum number of compiles for each way to save memory

# The values of config.model.remat except 'auto', from the most to the fewest residuals in memory.
REMAT_BY_MEMORY = ('none', 'elementwise', 'dots', 'full')

MemoryPlan = dict[str, Any]  # {config key: value}
CompileResult = dict[str, Any]  # the entries of compile.json for a phase


class MemorySearch:
    """Compiles the phases of a pre-training run for the TPU slice or the GPUs `topology`, which need not be attached.

    Raises:
      UserError: The topology is unknown, its compiler is missing, or the mesh does not fit the devices or the model.
    """

    def __init__(self, settings: PretrainingSettings, topology: str):
        self.settings, self.topology = settings, topology
        self.devices = topology_devices(topology)
        self._available = generation_of(topology).hbm_bytes  # the bytes that JAX may use on a device
        self._setups: dict[tuple, Setup] = {}
        self.setup({})

    def setup(self, plan: MemoryPlan) -> Setup:
        """Returns the setup with the remat policy and the mesh of a plan."""
        remat = plan.get('model.remat', self.settings.model.remat)
        mesh = {axis: plan.get(f'mesh.{axis}', size) for axis, size in self.settings.mesh_axes.items()}
        key = (remat, *mesh.values())
        if key not in self._setups:
            model = dataclasses.replace(self.settings.model, remat=remat)
            settings = dataclasses.replace(self.settings, model=model)
            config = settings.model_config(settings.vocab.size)
            self._setups[key] = build_pretraining_setup(settings, config, make_mesh(mesh, self.devices))
        return self._setups[key]

    def compile(self, phase: PretrainingPhase, plan: MemoryPlan | None = None) -> CompileResult:
        """Compiles the step of a phase. Values that `plan` does not set come from the config.

        Returns:
          The entries of compile.json. `hbm_bytes_per_chip` is None if the compiler does not state the number.

        Raises:
          UserError: The row shards do not divide the rows of an accumulation step.
        """
        plan = plan or {}
        setup = self.setup(plan)
        phase = dataclasses.replace(phase, grad_accum_steps=plan.get('grad_accum_steps', phase.grad_accum_steps))
        key, smallest = phase.smallest_batch
        check_row_count(smallest, phase.grad_accum_steps, row_shards(setup.mesh), key)
        figures, compiled = self._phase_figures(setup, phase), compile_step(setup, phase)
        # The GPU compiler does not fail if a program needs more memory than the device has.
        compiled['fits'] &= (compiled['hbm_bytes_per_chip'] or 0) <= self._available
        text = compiled.pop('text', None)
        cost = {}
        if text and compiled['fits']:
            cost = step_cost(text, self.topology, figures['flops'], figures['peak_flops'])
        return {**figures, **compiled, **cost}

    def _phase_figures(self, setup: Setup, phase: PretrainingPhase) -> dict[str, Any]:
        """Returns the entries that are known before compiling."""
        flops = train_flops_per_sequence(setup.module.config, phase.seq_len, phase.max_predictions)
        return {
            'phase': phase.number,
            'batch_size': phase.batch_size,
            'seq_len': phase.seq_len,
            'grad_accum_steps': phase.grad_accum_steps,
            'hbm_bytes_available': self._available,
            'parameters_bytes': _shard_bytes(setup.state.params),
            'optimizer_bytes': _shard_bytes(setup.state.opt_state),
            # By formula, without rematerialization and padding.
            'flops': flops * phase.batch_size / len(self.devices),
            'peak_flops': peak_flops(self.devices[0].device_kind),
            'collectives': {},
            # Defaults for a step without an estimate.
            'estimated_step_s': None,
            'mfu_estimate': None,
            'modelled_share': None,
        }

    def batches(self, phase: PretrainingPhase) -> Iterator[CompileResult]:
        """Compiles a phase with its batch size, then with doubled batch sizes until one does not fit.

        If the first batch size does not fit, the batch size is halved instead, until it fits or a chip has 1 row per
        accumulation step. Halving rounds the rows per chip and accumulation step down. With a ramp, the batch
        size stays a multiple of `batch_size_start`, and larger than it.
        """
        result = self.compile(phase)
        yield result
        if phase.batch_size_start:
            unit, least = phase.batch_size_start, 2
        else:
            unit, least = phase.grad_accum_steps * row_shards(self.setup({}).mesh), 1
        grows = result['fits']
        while result['fits'] == grows and (grows or phase.batch_size > least * unit):
            rows = phase.batch_size * 2 if grows else max(phase.batch_size // unit // 2, least) * unit
            phase = dataclasses.replace(phase, batch_size=rows)
            result = self.compile(phase)
            yield result

    def search_plans(
        self, phase: PretrainingPhase, result: CompileResult
    ) -> Iterator[tuple[MemoryPlan, CompileResult]]:
        """Compiles other ways to compute a phase that does not fit.

        There are three ways: more accumulation steps, more rematerialization, and weights split over more chips. Each
        way is tried until a plan fits, with at most TRIES compiles. If none of these plans fits, a plan combines the
        first two ways. If this plan does not fit either, a last plan combines all three.
        """
        any_fits = False
        for plans in (self._accumulation_plans(phase, result), self._remat_plans(), self._fsdp_plans(result)):
            for plan, trial in self._compile_until_fit(phase, plans[:TRIES]):
                any_fits |= trial['fits']
                yield plan, trial
        if not any_fits:
            steps = phase.grad_accum_steps * self._rows_per_step(phase)
            most: MemoryPlan = {'grad_accum_steps': steps, 'model.remat': 'full'}
            yield from self._compile_until_fit(phase, [most, *({**most, **mesh} for mesh in self._mesh_plans()[-1:])])

    def _compile_until_fit(
        self, phase: PretrainingPhase, plans: Sequence[MemoryPlan]
    ) -> Iterator[tuple[MemoryPlan, CompileResult]]:
        for plan in plans:
            trial = self.compile(phase, plan)
            yield plan, trial
            if trial['fits']:
                return

    def _accumulation_plans(self, phase: PretrainingPhase, result: CompileResult) -> list[MemoryPlan]:
        """Returns plans with more and more accumulation steps, starting one plan before the first that should fit."""
        rows, fixed, available = self._rows_per_step(phase), _fixed_bytes(result), result['hbm_bytes_available']
        counts = [n for n in range(2, rows + 1) if rows % n == 0]
        enough = [i for i, n in enumerate(counts) if fixed + (_needed_bytes(result) - fixed) / n <= available]
        first = max(min(enough, default=len(counts) - 1) - 1, 0)
        return [{'grad_accum_steps': phase.grad_accum_steps * n} for n in counts[first:]]

    def _remat_plans(self) -> list[MemoryPlan]:
        remat = resolve_remat(self.setup({}).module.config, self.devices[0].platform)
        return [{'model.remat': more} for more in REMAT_BY_MEMORY[REMAT_BY_MEMORY.index(remat) + 1 :]]

    def _fsdp_plans(self, result: CompileResult) -> list[MemoryPlan]:
        """Returns the plans of `_mesh_plans` that should fit. A chip then stores a smaller part of the weights."""
        fixed, fsdp = _fixed_bytes(result), self.setup({}).mesh.shape['fsdp']
        rest, plans = _needed_bytes(result) - fixed, self._mesh_plans()
        return [plan for plan in plans if rest + fixed * fsdp / plan['mesh.fsdp'] <= result['hbm_bytes_available']]

    def _rows_per_step(self, phase: PretrainingPhase) -> int:
        """Returns the rows of the smallest batch per chip and accumulation step. Every plan must divide this number."""
        return phase.smallest_batch[1] // phase.grad_accum_steps // row_shards(self.setup({}).mesh)

    def _mesh_plans(self) -> list[MemoryPlan]:
        """Returns plans that multiply the fsdp axis and divide the data axis by the same power of two.

        The data axis stays a multiple of the number of slices.
        """
        shape, width = self.setup({}).mesh.shape, self.settings.model.width
        fsdp, data, slices = shape['fsdp'], shape['data'], slice_count(self.devices)
        factors = [2**i for i in range(1, 11) if data % (2**i * slices) == 0 and width % (fsdp * 2**i) == 0]
        rest = self.settings.mesh_axes['data'] == -1  # -1: all remaining devices
        return [{'mesh.fsdp': fsdp * n, **({} if rest else {'mesh.data': data // n})} for n in factors]


def compile_step(setup: Setup, phase: PretrainingPhase) -> dict[str, Any]:
    """Compiles the step of a phase. Returns entries of compile.json, and the optimized HLO of the step as `text`.

    If libtpu reports that memory is exhausted, `fits` is False and `text` is absent. On GPUs, `fits` is always True. On
    TPUs, libtpu writes the text: jaxlib 0.10.2 cannot print some instructions, such as asynchronous gathers on v6e.
    """
    lowered = StepLowering(setup, phase).step(phase.batches[phase.seq_len])
    if setup.mesh.devices.flat[0].platform != 'tpu':
        compiled = lowered.compile({**GPU_FLAGS, **UNTIMED})
        return {'fits': True, **_analyze(compiled), 'text': compiled.as_text()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled = lowered.compile({'xla_dump_to': folder, 'xla_dump_hlo_as_text': True})
        except jax.errors.JaxRuntimeError as error:
            if 'RESOURCE_EXHAUSTED' not in str(error):
                raise
            return {'fits': False, **_parse_memory_error(str(error)), 'temporary_bytes': None}
        (text,) = Path(folder).glob('*.after_codegen.txt')
        return {'fits': True, **_analyze(compiled), 'text': text.read_text(encoding='utf-8')}


def _analyze(compiled: jax.stages.Compiled) -> dict[str, float | None]:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        'hbm_bytes_per_chip': used + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
        'temporary_bytes': memory.temp_size_in_bytes,
        'compiled_flops': cost.get('flops'),
        'accessed_bytes': cost.get('bytes accessed'),
    }


def format_flags(plan: MemoryPlan, settings: PretrainingSettings, phase: PretrainingPhase) -> str:
    """Formats a plan as command-line flags. If the config has phases, `grad_accum_steps` is set for this phase only."""
    prefix = f'phases[{phase.number}].' if settings.phases else ''
    flags = [f'--config.{prefix if key == "grad_accum_steps" else ""}{key}={value}' for key, value in plan.items()]
    return ' '.join(f"'{flag}'" if '[' in flag else flag for flag in flags)


def _needed_bytes(result: CompileResult) -> int:
    """Returns the bytes that a chip needs, or twice the available bytes if the compiler does not state them."""
    return result['hbm_bytes_per_chip'] or 2 * result['hbm_bytes_available']


def _fixed_bytes(result: CompileResult) -> int:
    """Returns the bytes of parameters, optimizer state and gradients, which do not depend on the batch."""
    return 2 * result['parameters_bytes'] + result['optimizer_bytes']


def _shard_bytes(tree: Any) -> int:
    """Returns the bytes that an abstract tree with shardings takes on one chip."""
    leaves = jax.tree.leaves(tree)
    return sum(int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in leaves)


def _parse_memory_error(message: str) -> dict[str, int | None]:
    """Parses an error of the compiler. Returns the bytes per chip that the step needs and the bytes that are available.

    Examples: `Used 67.70G of 15.75G hbm`, `... required for HLO temporaries (1.66T) exceeds available HBM (15.75G)`.
    """
    size = r'\(?([\d.]+)([KMGT])\b'
    match = re.search(rf'{size}\)? (?:exceeds|of)(?:[^\d]*?{size})?', message)
    if not match:
        return {'hbm_bytes_per_chip': None}
    needed, available = (
        round(float(number) * 2 ** {'K': 10, 'M': 20, 'G': 30, 'T': 40}[unit]) if number else None
        for number, unit in (match.group(1, 2), match.group(3, 4))
    )
    return {'hbm_bytes_per_chip': needed, **({'hbm_bytes_available': available} if available else {})}
