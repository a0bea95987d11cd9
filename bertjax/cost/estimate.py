"""Estimate the time of a compiled step: the compiler's cycles, and a model of what has none. Nothing is measured."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator

from bertjax.cost.collectives import Collective, collectives, is_collective
from bertjax.cost.hlo import Computation, Instruction, shape_bytes, trip_count

# The share of the peak, or of the memory bandwidth, that a kernel is assumed to reach.
EFFICIENCY = 0.6
# Instructions that take no time of their own: names, compiler notes, both ends of asynchronous work.
_FREE = {
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all', 'partition-id', 'replica-id',
    'opt-barrier', 'optimization-barrier', 'add-dependency', 'domain', 'custom-call', 'send', 'recv',
}  # fmt: skip
# Module names in a path -> the part of the step; the last one in a path decides. Flax and `jax.named_scope` set them.
_MODULES = {
    'dropout': 'dropout',
    'attention': 'attention',
    'mlp': 'mlp',
    **dict.fromkeys(('attention_norm', 'mlp_norm', 'norm', 'final_norm', 'layers'), 'norm'),
    'embeddings': 'embeddings',
    **dict.fromkeys(('mlm', 'nsp', 'pooler'), 'head'),
}
# All parts of a step: rows of docs/performance.md's table.
PARTS = {*_MODULES.values(), 'optimiser', 'stacks', 'casts', 'copies', 'collectives', 'other'}
_PRODUCTS = {'dot', 'convolution'}
_MOVES = {'copy', 'transpose', 'reshape', 'slice', 'concatenate', 'pad', 'reverse', 'copy-start', 'copy-done'}
_OF_LOOP = r'dynamic_(update_)?(slice|index_in_dim)'  # what a scan stores and reads again
_IDLE = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'broadcast', 'iota', 'partition-id'}


@dataclasses.dataclass(frozen=True)
class Rates:
    """Speeds of a chip.

    Attributes:
      clock_hz: cycles per second, as the compiler's estimates count them.
      peak_flops: dense bfloat16 operations per second.
      hbm_bandwidth: bytes per second.
      ici_bandwidth: chips of a group -> bytes per second that each of them can send.
      network_bandwidth: bytes per second that each can send to other slices.
    """

    clock_hz: float
    peak_flops: float
    hbm_bandwidth: float
    ici_bandwidth: Callable[[int], float]
    network_bandwidth: float = 0.0


@dataclasses.dataclass
class Estimate:
    """The time of a step on a chip.

    Attributes:
      times: {(source, part of the step): seconds}. Sources: 'compiler', its own cycles; 'kernel', 'other' and
        'exposed' (collectives), modelled.
      collectives: with their seconds.
      unknown_loops: loops whose number of turns is unknown; they count once.
      silent_kernels: kernels whose author states no FLOPs; only their bytes count, which may be far too little.
    """

    times: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    unknown_loops: list[str] = dataclasses.field(default_factory=list)
    silent_kernels: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: 'Estimate', turns: int = 1) -> None:
        """Adds what another estimate has, `turns` times."""
        self.times.update({key: turns * seconds for key, seconds in other.times.items()})
        self.collectives += [dataclasses.replace(one, count=turns * one.count) for one in other.collectives]
        self.unknown_loops += other.unknown_loops
        self.silent_kernels += other.silent_kernels

    def seconds(self, *sources: str) -> float:
        """Seconds from these sources; from all of them without any."""
        return sum(seconds for (source, _), seconds in self.times.items() if not sources or source in sources)

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where the compiler has no cycles (only that for TPUs has)."""
        return self.seconds() if self.seconds('compiler', 'kernel') else None

    @property
    def modelled_share(self) -> float | None:
        """The share of `step_s` that does not come from the compiler."""
        return 1 - self.seconds('compiler') / self.step_s if self.step_s else None

    def parts(self) -> list[tuple[str, float]]:
        """(part of the step, seconds), the most expensive first."""
        totals = collections.Counter()
        for (_, part), seconds in self.times.items():
            totals[part] += seconds
        return totals.most_common()


def estimate(entry: Computation, rates: Rates, chips: int) -> Estimate:
    """The time of a program that `chips` chips run together.

    A chip executes the instructions one after the other, in the order of the text, each as long as the compiler
    estimates; the bodies of loops as often as they run; of branches the longest. Instructions without an estimate are
    modelled:

    * kernels, and the few other ones: max(FLOPs / peak, bytes / HBM bandwidth) / EFFICIENCY;
    * collectives: bytes sent / bandwidth of the links, or of the network between slices, one collective at a time on
      each of the two, minus what is computed between its start and its end.

    Left out: copies between the chip's memories that run beside the computation, the latency of a collective, the host.
    """
    total, now, free = Estimate(), 0.0, {False: 0.0, True: 0.0}  # when the links, and the network, are free again
    sent = collectives(entry, chips)
    done: dict[int, float] = {}
    for one in entry.instructions.values():
        for each in (x for x in sent if x.first == one.name):
            each.seconds = each.sent and each.sent / (
                rates.network_bandwidth if each.network else rates.ici_bandwidth(each.chips)
            )
            done[id(each)] = free[each.network] = max(free[each.network], now) + each.seconds
        own = _execution(one, rates, chips)
        total.add(own)
        now += own.seconds()
        for each in (x for x in sent if x.last == one.name):
            each.exposed = max(done[id(each)] - now, 0.0)
            now += each.exposed
            total.times['exposed', 'collectives'] += each.exposed
    total.collectives += sent
    return total


def _execution(one: Instruction, rates: Rates, chips: int) -> Estimate:
    """The time of one instruction, and of the computations that it calls."""
    total = Estimate()
    if one.opcode == 'while':
        turns = trip_count(one)
        if turns is None:
            total.unknown_loops.append(one.name)
        for computation in one.called('condition', 'body'):
            total.add(estimate(computation, rates, chips), 1 if turns is None else turns)
    elif one.opcode == 'conditional':
        branches = one.called('branch_computations', 'true_computation', 'false_computation')
        total.add(max((estimate(each, rates, chips) for each in branches), key=Estimate.seconds))
    elif one.opcode == 'call':
        total.add(estimate(one.called('to_apply')[0], rates, chips))
    elif _is_kernel(one):
        flops, moved = _kernel_work(one)
        total.silent_kernels += [] if flops else [one.name]
        total.times['kernel', part_of(one)] += max(flops / rates.peak_flops, moved / rates.hbm_bandwidth) / EFFICIENCY
    elif one.cycles is not None:
        total.times['compiler', part_of(one)] += one.cycles / rates.clock_hz
    elif not (
        one.opcode in _FREE
        or one.opcode.endswith(('-start', '-done', '-update'))
        or any(map(is_collective, one.inside()))
    ):
        total.times['other', part_of(one)] += _moved_bytes(one) / rates.hbm_bandwidth / EFFICIENCY
    return total


def _is_kernel(one: Instruction) -> bool:
    """Whether it is a Pallas kernel, for which the compiler has no estimate; other custom calls are its own notes."""
    return one.opcode == 'custom-call' and (
        '"tpu_custom_call"' in one.attributes or '"cost_estimate"' in one.attributes
    )


def _kernel_work(one: Instruction) -> tuple[float, float]:
    """FLOPs and bytes of a kernel, as its author states them (`pl.CostEstimate`); else 0, and operands and results."""
    stated = dict(re.findall(r'"(\w+)":"?(-?[\d.e+]+)', one.find(r'"cost_estimate":\{([^}]*)\}') or ''))
    return float(stated.get('flops', 0)), float(stated.get('bytes_accessed', 0)) or float(_moved_bytes(one, False))


def _moved_bytes(one: Instruction, hbm_only: bool = True) -> int:
    """Bytes of operands and results, each once."""
    return sum(shape_bytes(x.shape, hbm_only=hbm_only) for x in (one, *one.inputs))


def part_of(one: Instruction) -> str:
    """The part of the step that an executed instruction counts in: a key of docs/performance.md's table.

    A fusion counts as its matrix product does; without one, as its result does. What only changes types is a cast, what
    only moves numbers a copy, whichever module contains it; what the loop over the blocks stores for the backward pass,
    and reads again, are the stacks.
    """
    work = [each for each in one.inside() if each.opcode not in _IDLE]
    opcodes = {each.opcode for each in work}
    if opcodes and opcodes <= {'convert', *_MOVES}:
        return 'casts' if 'convert' in opcodes else 'copies'
    product = next((each.op_name for each in work if each.opcode in _PRODUCTS), '')
    if not product and opcodes & {'dynamic-update-slice', 'dynamic-slice'} and re.search(_OF_LOOP, one.op_name):
        return 'stacks'
    own = (product or one.op_name, *(each.op_name for each in work))
    names = itertools.chain(own, _names_before(one))
    return next(filter(None, map(_part_of_name, names)), 'other')


def _names_before(one: Instruction) -> Iterator[str]:
    """Names of the operands, then of their operands, and so on."""
    queue = [one]
    for each in queue:
        new = [x for x in each.inputs if x not in queue and x.opcode not in ('parameter', 'constant')]
        yield from (inner.op_name for x in new for inner in (x, *x.inside()))
        queue += new


def _part_of_name(op_name: str) -> str:
    """'' for a name without a path, which a pass of the compiler gave."""
    path = op_name.split('/')
    for element in reversed(path):
        if part := _MODULES.get(re.sub(r'_\d+$', '', element)):  # of a block that is not scanned, layers_0
            return part
    if len(path) == 1:
        return ''
    if not re.search(r'\bjvp\(', op_name):
        return 'optimiser'
    return 'stacks' if 'encoder' in path else 'head'
