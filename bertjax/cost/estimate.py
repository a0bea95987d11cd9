"""Estimates the time of a compiled step from the compiler's cycles. Instructions without cycles are modeled."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator

from bertjax.cost.collectives import Collective, find_collectives, is_collective
from bertjax.cost.hlo import Computation, Instruction, shape_bytes, trip_count

# The assumed fraction of the peak FLOPs or the memory bandwidth that kernels and instructions without cycles reach.
EFFICIENCY = 0.6
# Opcodes that take no time if the compiler reports no cycles for them.
_FREE = {
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all', 'partition-id', 'replica-id',
    'opt-barrier', 'optimization-barrier', 'add-dependency', 'domain', 'custom-call', 'send', 'recv',
}  # fmt: skip
# {module name: part of the step}. The last of these names in the path of an operation decides the operation's part.
# Flax and `jax.named_scope` set the paths.
_MODULES = {
    'dropout': 'dropout',
    'attention': 'attention',
    'mlp': 'mlp',
    **dict.fromkeys(('attention_norm', 'mlp_norm', 'norm', 'final_norm', 'layers'), 'norm'),
    'embeddings': 'embeddings',
    **dict.fromkeys(('mlm', 'nsp', 'pooler'), 'head'),
}
# All parts of a step: the rows of the table in docs/performance.md.
PARTS = {*_MODULES.values(), 'optimizer', 'stacks', 'casts', 'copies', 'collectives', 'other'}
_PRODUCTS = {'dot', 'convolution'}
_MOVES = {'copy', 'transpose', 'reshape', 'slice', 'concatenate', 'pad', 'reverse', 'copy-start', 'copy-done'}
_SCAN_STACK = r'dynamic_(update_)?(slice|index_in_dim)'  # the operations that store and read the residuals of a scan
_IDLE = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'broadcast', 'iota', 'partition-id'}


@dataclasses.dataclass(frozen=True)
class Rates:
    """Speeds of a chip.

    Attributes:
      clock_hz: The clock frequency, which converts the compiler's cycles to seconds.
      peak_flops: The peak dense bfloat16 FLOPs per second.
      hbm_bandwidth: The memory bandwidth in bytes per second.
      ici_bandwidth: A function from the number of chips in a group to the bytes per second that each chip can send.
      network_bandwidth: The bytes per second that each chip can send to other slices.
    """

    clock_hz: float
    peak_flops: float
    hbm_bandwidth: float
    ici_bandwidth: Callable[[int], float]
    network_bandwidth: float = 0.0


@dataclasses.dataclass
class Estimate:
    """The estimated time of a step on a chip.

    Attributes:
      times: {(source, part of the step): seconds}. Times from the compiler's cycles have the source 'compiler'.
        Modeled times have the source 'kernel', 'other' or 'exposed' (collectives).
      collectives: The collectives with their seconds.
      unknown_loops: The names of the loops with an unknown trip count. Their bodies count once.
      silent_kernels: The names of kernels that state no FLOPs. Only their bytes count, so their time may be too low.
    """

    times: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    unknown_loops: list[str] = dataclasses.field(default_factory=list)
    silent_kernels: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: 'Estimate', turns: int = 1) -> None:
        """Adds another estimate `turns` times."""
        self.times.update({key: turns * seconds for key, seconds in other.times.items()})
        self.collectives += [dataclasses.replace(each, count=turns * each.count) for each in other.collectives]
        self.unknown_loops += other.unknown_loops
        self.silent_kernels += other.silent_kernels

    def seconds(self, *sources: str) -> float:
        """Returns the seconds from these sources, or from all sources by default."""
        return sum(seconds for (source, _), seconds in self.times.items() if not sources or source in sources)

    @property
    def step_s(self) -> float | None:
        """The seconds per step; None if there are neither cycles nor kernels. Only the TPU compiler reports cycles."""
        return self.seconds() if self.seconds('compiler', 'kernel') else None

    @property
    def modelled_share(self) -> float | None:
        """The share of `step_s` that does not come from the compiler; None if `step_s` is None."""
        return 1 - self.seconds('compiler') / self.step_s if self.step_s else None

    def parts(self) -> list[tuple[str, float]]:
        """Returns (part of the step, seconds), the most expensive part first."""
        totals = collections.Counter()
        for (_, part), seconds in self.times.items():
            totals[part] += seconds
        return totals.most_common()


def estimate(entry: Computation, rates: Rates, chips: int) -> Estimate:
    """Estimates the time of a program that `chips` chips run together.

    A chip executes the instructions in the order of the text. A loop takes its trip count (1 if unknown) times the time
    of its body, and a conditional as long as its slowest branch. Most instructions take the cycles that the compiler
    reports. Kernels, collectives and other instructions without cycles are modeled:

    * kernels: max(FLOPs / peak, bytes / HBM bandwidth) / EFFICIENCY;
    * collectives: bytes sent / bandwidth, minus the time of the work between their start and their end. The links of a
      slice and the network between slices each carry one collective at a time;
    * other instructions: bytes / HBM bandwidth / EFFICIENCY.

    The estimate ignores asynchronous copies between the chip's memories, the latency of collectives, and the host.
    """
    # free_at: the times when the links of the slice (False) and the network between slices (True) become free.
    total, now, free_at = Estimate(), 0.0, {False: 0.0, True: 0.0}
    collectives = find_collectives(entry, chips)
    end_times: dict[int, float] = {}
    for instruction in entry.instructions.values():
        for collective in (x for x in collectives if x.first == instruction.name):
            between_slices = collective.network
            bandwidth = rates.network_bandwidth if between_slices else rates.ici_bandwidth(collective.chips)
            collective.seconds = collective.sent and collective.sent / bandwidth
            free_at[between_slices] = max(free_at[between_slices], now) + collective.seconds
            end_times[id(collective)] = free_at[between_slices]
        cost = _estimate_instruction(instruction, rates, chips)
        total.add(cost)
        now += cost.seconds()
        for collective in (x for x in collectives if x.last == instruction.name):
            collective.exposed = max(end_times[id(collective)] - now, 0.0)
            now += collective.exposed
            total.times['exposed', 'collectives'] += collective.exposed
    total.collectives += collectives
    return total


def _estimate_instruction(instruction: Instruction, rates: Rates, chips: int) -> Estimate:
    total = Estimate()
    if instruction.opcode == 'while':
        turns = trip_count(instruction)
        if turns is None:
            total.unknown_loops.append(instruction.name)
        for computation in instruction.called('condition', 'body'):
            total.add(estimate(computation, rates, chips), 1 if turns is None else turns)
    elif instruction.opcode == 'conditional':
        branches = instruction.called('branch_computations', 'true_computation', 'false_computation')
        total.add(max((estimate(branch, rates, chips) for branch in branches), key=Estimate.seconds))
    elif instruction.opcode == 'call':
        total.add(estimate(instruction.called('to_apply')[0], rates, chips))
    elif _is_kernel(instruction):
        flops, moved = _kernel_work(instruction)
        total.silent_kernels += [] if flops else [instruction.name]
        seconds = max(flops / rates.peak_flops, moved / rates.hbm_bandwidth) / EFFICIENCY
        total.times['kernel', part_of(instruction)] += seconds
    elif instruction.cycles is not None:
        total.times['compiler', part_of(instruction)] += instruction.cycles / rates.clock_hz
    elif not (
        instruction.opcode in _FREE
        or instruction.opcode.endswith(('-start', '-done', '-update'))
        or any(map(is_collective, instruction.inside()))
    ):
        total.times['other', part_of(instruction)] += _moved_bytes(instruction) / rates.hbm_bandwidth / EFFICIENCY
    return total


def _is_kernel(instruction: Instruction) -> bool:
    """Returns whether an instruction is a Pallas kernel. Other custom calls count only if they have cycles."""
    names = ('"tpu_custom_call"', '"cost_estimate"')
    return instruction.opcode == 'custom-call' and any(name in instruction.attributes for name in names)


def _kernel_work(instruction: Instruction) -> tuple[float, float]:
    """Returns the FLOPs and bytes that `pl.CostEstimate` states, else 0 FLOPs and the bytes of inputs and outputs."""
    stated = dict(re.findall(r'"(\w+)":"?(-?[\d.e+]+)', instruction.find(r'"cost_estimate":\{([^}]*)\}') or ''))
    moved = float(stated.get('bytes_accessed', 0)) or float(_moved_bytes(instruction, hbm_only=False))
    return float(stated.get('flops', 0)), moved


def _moved_bytes(instruction: Instruction, hbm_only: bool = True) -> int:
    return sum(shape_bytes(x.shape, hbm_only=hbm_only) for x in (instruction, *instruction.inputs))


def part_of(instruction: Instruction) -> str:
    """Returns the part of the step that an instruction belongs to; see the table in docs/performance.md.

    A fusion belongs to the part of its matrix product, or of its result if it has no product. In every module, an
    instruction that only moves data or changes types is a cast if it changes types, else a copy. The stacks are the
    arrays that the scan over the blocks stores for the backward pass.
    """
    work = [inner for inner in instruction.inside() if inner.opcode not in _IDLE]
    opcodes = {inner.opcode for inner in work}
    if opcodes and opcodes <= {'convert', *_MOVES}:
        return 'casts' if 'convert' in opcodes else 'copies'
    product = next((inner.op_name for inner in work if inner.opcode in _PRODUCTS), '')
    moves_slice = opcodes & {'dynamic-update-slice', 'dynamic-slice'}
    if not product and moves_slice and re.search(_SCAN_STACK, instruction.op_name):
        return 'stacks'
    inner_names = (product or instruction.op_name, *(inner.op_name for inner in work))
    names = itertools.chain(inner_names, _iterate_operand_names(instruction))
    return next(filter(None, map(_part_of_name, names)), 'other')


def _iterate_operand_names(instruction: Instruction) -> Iterator[str]:
    """Yields the op names of the operands, recursively, the nearest operands first."""
    queue = [instruction]
    for other in queue:
        new = [x for x in other.inputs if x not in queue and x.opcode not in ('parameter', 'constant')]
        yield from (inner.op_name for x in new for inner in (x, *x.inside()))
        queue += new


def _part_of_name(op_name: str) -> str:
    """Returns the part that an op name belongs to. A name without a path, from a compiler pass, gives ''."""
    path = op_name.split('/')
    for element in reversed(path):
        if part := _MODULES.get(re.sub(r'_\d+$', '', element)):  # unrolled blocks are named `layers_0`, ...
            return part
    if len(path) == 1:
        return ''
    if not re.search(r'\bjvp\(', op_name):
        return 'optimizer'
    return 'stacks' if 'encoder' in path else 'head'
