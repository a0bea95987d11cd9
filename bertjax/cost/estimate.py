"""How long a compiled step takes, by the compiler's own estimates and a model of what they leave out. An estimate."""

import dataclasses
from collections.abc import Callable

from bertjax.cost.collectives import COLLECTIVES, Collective, collectives
from bertjax.cost.groups import group_of
from bertjax.cost.hlo import Computation, Instruction, Module
from bertjax.cost.loops import trip_count
from bertjax.cost.work import hbm_bytes, is_kernel, kernel_work, product_flops

# The share of the peak, or of the memory's bandwidth, that a kernel is taken to reach.
EFFICIENCY = 0.6
# What takes no time of its own: names, notes of the compiler, and both ends of what goes on beside the computation.
_FREE = {
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all', 'partition-id', 'replica-id',
    'opt-barrier', 'optimization-barrier', 'add-dependency', 'domain', 'custom-call',
    'send', 'recv', *COLLECTIVES,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rates:
    """What a chip can do.

    Attributes:
      clock_hz: cycles a second, of the compiler's estimates.
      peak_flops: dense bfloat16, a second.
      hbm_bandwidth: bytes a second.
      ici_bandwidth: chips of a group -> bytes a second that each of them can send.
      network_bandwidth: bytes a second that each can send to other slices.
    """

    clock_hz: float
    peak_flops: float
    hbm_bandwidth: float
    ici_bandwidth: Callable[[int], float]
    network_bandwidth: float = 0.0


@dataclasses.dataclass(frozen=True)
class Item:
    """Something that takes time.

    Attributes:
      name, op_name: of the instruction.
      group: that it counts in, one of `groups.GROUPS`.
      held: groups that it has work of.
      source: 'compiler', its own estimate; 'kernel', 'other' or 'exposed', modelled.
      seconds: of one execution.
      times: executions a step.
      flops: of its matrix products, one execution.
      bytes: that it reads and writes in the chip's memory, one execution.
    """

    name: str
    op_name: str
    group: str
    held: frozenset[str]
    source: str
    seconds: float
    times: int = 1
    flops: float = 0.0
    bytes: int = 0

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return self.times * self.seconds


@dataclasses.dataclass(frozen=True)
class Sent:
    """A collective of the step.

    Attributes:
      collective: which.
      seconds: that it takes alone, one execution.
      exposed: seconds of them that nothing else hides.
      times: executions a step.
    """

    collective: Collective
    seconds: float
    exposed: float
    times: int = 1

    @property
    def is_async(self) -> bool:
        """Whether other work can go on meanwhile."""
        return self.collective.first != self.collective.last


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The time of a step on a chip.

    Attributes:
      items: what takes time.
      sent: the collectives.
      unknown_loops: loops of which nobody knows how often they run; they are counted once.
    """

    items: tuple[Item, ...]
    sent: tuple[Sent, ...]
    unknown_loops: tuple[str, ...]

    def seconds(self, *sources: str) -> float:
        """Of the items from these sources; of all without any."""
        return sum(item.total for item in self.items if not sources or item.source in sources)

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where the compiler has no estimates (only that for TPUs has)."""
        return self.seconds() if self.seconds('compiler', 'kernel') else None

    @property
    def modelled_share(self) -> float | None:
        """The share of `step_s` that is not the compiler's."""
        return 1 - self.seconds('compiler') / self.step_s if self.step_s else None

    @property
    def flops(self) -> float:
        """Of all matrix products that the compiled step computes, recomputed and padded ones too; kernels as stated."""
        return sum(item.times * item.flops for item in self.items)

    @property
    def silent_kernels(self) -> tuple[str, ...]:
        """Kernels whose author states no FLOPs: they count by their bytes alone, which may be far too little."""
        return tuple(dict.fromkeys(item.name for item in self.items if item.source == 'kernel' and not item.flops))

    @property
    def bytes(self) -> int:
        """That the step reads and writes in the chip's memory, but for copies that go on beside it."""
        return sum(item.times * item.bytes for item in self.items)

    def groups(self) -> list[tuple[str, float, float]]:
        """(group, seconds, seconds of it in fusions that also hold work of other groups), the most expensive first."""
        totals: dict[str, tuple[float, float]] = {}
        for item in self.items:
            all_of_it, mixed = totals.get(item.group, (0.0, 0.0))
            other = item.total if item.held - {item.group, 'casts', 'copies'} else 0.0
            totals[item.group] = (all_of_it + item.total, mixed + other)
        return sorted(((name, *both) for name, both in totals.items()), key=lambda row: -row[1])


def estimate(module: Module, rates: Rates, chips: int) -> Estimate:
    """The time of a program that `chips` chips run together.

    The instructions of a chip are executed one after the other, in the order of the text, each as long as the compiler
    estimates; the bodies of loops as often as they run; of branches the longest. Added to that is what has no
    estimate:

    * kernels, and the few other instructions without: max(FLOPs / peak, bytes / HBM bandwidth) / EFFICIENCY;
    * collectives: bytes sent / bandwidth of the links, or of the network between slices, one collective at a time on
      each of the two, less what is computed between its start and its end.

    Left out: copies between the chip's memories that go on beside the computation, the latency of a collective, and
    whatever the host does.
    """
    step = _Step(module, rates, chips)
    items, sent = step.run(module.entry)
    return Estimate(tuple(items), tuple(sent), tuple(dict.fromkeys(step.unknown_loops)))


class _Step:
    def __init__(self, module: Module, rates: Rates, chips: int):
        self.module, self.rates, self.chips = module, rates, chips
        self.unknown_loops: list[str] = []

    def run(self, computation: Computation) -> tuple[list[Item], list[Sent]]:
        """One execution of a computation."""
        items: list[Item] = []
        sent: list[Sent] = []
        now, free = 0.0, {False: 0.0, True: 0.0}  # when the links, and when the network, have nothing to carry
        all_of_it = collectives(self.module, computation, self.chips)
        running: dict[str, float] = {}
        for one in computation.instructions.values():
            for each in (c for c in all_of_it if c.first == one.name):
                running[each.name] = free[each.network] = max(free[each.network], now) + self._sending(each)
            own, own_sent = self._own(computation, one)
            items += own
            sent += own_sent
            now += sum(item.total for item in own)
            for each in (c for c in all_of_it if c.last == one.name):
                exposed = max(running[each.name] - now, 0.0)
                now += exposed
                sent.append(Sent(each, self._sending(each), exposed))
                held = frozenset({'collectives'})
                items.append(Item(each.name, each.op_name, 'collectives', held, 'exposed', exposed))
        return items, sent

    def _own(self, computation: Computation, one: Instruction) -> tuple[list[Item], list[Sent]]:
        if one.opcode == 'while':
            return self._loop(computation, one)
        if one.opcode == 'conditional':
            names = [name for how, called in one.called.items() if how != 'to_apply' for name in called]
            branches = [self.run(self.module.computations[name]) for name in names]
            return max(branches, key=lambda branch: sum(item.total for item in branch[0]))
        if one.opcode == 'call':
            return self.run(self.module.computations[one.called['to_apply'][0]])
        item = self._item(computation, one)
        return ([item] if item else []), []

    def _loop(self, computation: Computation, one: Instruction) -> tuple[list[Item], list[Sent]]:
        times = trip_count(self.module, computation, one)
        if times is None:
            self.unknown_loops.append(one.name)
            times = 1
        items, sent = [], []
        for name in (one.called['condition'][0], one.called['body'][0]):
            of_one, sent_by_one = self.run(self.module.computations[name])
            items += [dataclasses.replace(item, times=item.times * times) for item in of_one]
            sent += [dataclasses.replace(each, times=each.times * times) for each in sent_by_one]
        return items, sent

    def _item(self, computation: Computation, one: Instruction) -> Item | None:
        if is_kernel(one):
            flops, moved = kernel_work(computation, one)
            source, seconds = 'kernel', self._modelled(flops, moved)
        elif one.cycles is not None:
            flops, moved = product_flops(self.module, computation, one), hbm_bytes(self.module, computation, one)
            source, seconds = 'compiler', one.cycles / self.rates.clock_hz
        elif one.opcode in _FREE or one.opcode.endswith(('-start', '-done', '-update')) or self._only_sends(one):
            return None
        else:
            flops, moved = product_flops(self.module, computation, one), hbm_bytes(self.module, computation, one)
            source, seconds = 'other', self._modelled(flops, moved)
        group, held = group_of(self.module, computation, one)
        return Item(one.name, one.op_name, group, held, source, seconds, flops=flops, bytes=int(moved))

    def _sending(self, one: Collective) -> float:
        """Seconds that it takes alone."""
        if not one.sent:
            return 0.0
        return one.sent / (self.rates.network_bandwidth if one.network else self.rates.ici_bandwidth(one.chips))

    def _modelled(self, flops: float, moved: float) -> float:
        return max(flops / self.rates.peak_flops, moved / self.rates.hbm_bandwidth) / EFFICIENCY

    def _only_sends(self, one: Instruction) -> bool:
        """Whether a fusion is a collective, or one end of it: its time is that of the collective."""
        if one.opcode != 'fusion':
            return False
        inner = self.module.computations[one.called['calls'][0]].instructions.values()
        return any(each.opcode.removesuffix('-start') in COLLECTIVES for each in inner)
