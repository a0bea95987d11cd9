"""Finds the collectives of a compiled program, the bytes that they send, and their first and last instructions."""

import dataclasses
import math
import re
from collections.abc import Iterator

from bertjax.cost.hlo import Computation, Instruction, shape_bytes

# {opcode: function of n, the number of chips in a group}. The function returns the bytes that a chip sends, divided by
# the bytes of its operands or of its results, whichever are more. The all-reduce is assumed to use a ring, which needs
# the fewest bytes: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, J. Parallel Distrib. Comput. 69, 2009.
SENT_SHARES = {
    'all-reduce': lambda n: 2 * (n - 1) / n,
    'collective-permute': lambda n: 1.0,
}
_SPREADS = ('all-gather', 'reduce-scatter', 'all-to-all', 'ragged-all-to-all', 'collective-broadcast')
SENT_SHARES |= dict.fromkeys(_SPREADS, lambda n: (n - 1) / n)
_CHAIN = r'chain_id="(\d+)"'


@dataclasses.dataclass
class Collective:
    """A collective of a computation. It may consist of several instructions: a start, fusions and an end.

    Attributes:
      kind: A key of SENT_SHARES.
      sent: The bytes that each chip sends in one execution.
      chips: The number of chips in a group, or the number of slices for a collective between slices.
      first, last: The names of the first and last instruction. They differ only if the collective is asynchronous.
      network: Whether the collective uses the data center network between slices.
      seconds, exposed, count: The transfer time, the time that the chip waits for the end of the transfer, and the
        number of executions per step. `estimate` sets these fields.
    """

    kind: str
    sent: float
    chips: int
    first: str
    last: str
    network: bool = False
    seconds: float = 0.0
    exposed: float = 0.0
    count: int = 1


def is_collective(instruction: Instruction) -> bool:
    """Returns whether an instruction is a collective, or the start of an asynchronous collective."""
    return instruction.opcode.removesuffix('-start') in SENT_SHARES


def find_collectives(computation: Computation, chips: int) -> list[Collective]:
    """Returns the collectives in a computation and in its fusions. Loops, branches and calls are not searched."""
    by_key: dict[str, Collective] = {}
    by_start: dict[str, Collective] = {}
    for instruction in computation.instructions.values():
        if instruction.opcode.endswith('-done'):
            for start in filter(by_start.get, (x.name for x in instruction.inputs)):
                by_start[start].last = instruction.name
        for inner in filter(is_collective, instruction.inside()):
            key = _make_key(instruction, inner)
            if key in by_key:
                by_key[key].last = instruction.name
            elif not _continues_chain(instruction, inner):
                by_key[key] = by_start[instruction.name] = _make_collective(instruction, inner, chips)
    return [*by_key.values(), *_find_between_slices(computation)]


def _make_collective(instruction: Instruction, inner: Instruction, chips: int) -> Collective:
    # A fusion of an all-reduce and a slice of its result is a reduce-scatter, because each chip keeps only a part.
    scatters = instruction.opcode == 'fusion' and instruction.called('calls')[0].root.opcode == 'dynamic-slice'
    kind = inner.opcode.removesuffix('-start')
    kind = 'reduce-scatter' if scatters and kind == 'all-reduce' else kind
    group = _parse_group_size(inner, chips)
    operands = sum(shape_bytes(x.shape) for x in inner.inputs)
    size = operands * group if kind == 'all-gather' else operands  # the larger of operands and results
    return Collective(kind, size * SENT_SHARES[kind](max(group, 1)), group, instruction.name, instruction.name)


def _make_key(instruction: Instruction, inner: Instruction) -> str:
    """Returns a key that all instructions of a collective share. Collectives in `shard_map` may share a channel."""
    channel = inner.find(r'channel_id=(\d+)')
    in_parts = instruction.opcode == 'fusion' and channel
    return f'{channel} {inner.find(_CHAIN)}' if in_parts else inner.name


def _continues_chain(instruction: Instruction, inner: Instruction) -> bool:
    """Returns whether an instruction is a fusion that continues a collective that another instruction started."""
    chained = instruction.opcode == 'fusion' and inner.find(_CHAIN)
    return bool(chained) and not any('"AsyncCollectiveStart"' in other.attributes for other in instruction.inside())


def _find_between_slices(computation: Computation) -> Iterator[Collective]:
    """Yields the collectives between slices, which go through the hosts and which libtpu calls "megascale"."""
    rendezvous = r'_xla_host_transfer_rendezvous="([^"]+)".*_xla_megascale_target'
    ends = {
        instruction: instruction.find(rendezvous)
        for instruction in computation.instructions.values()
        if instruction.opcode in ('send', 'recv')
    }
    sends = {name: instruction for instruction, name in ends.items() if instruction.opcode == 'send' and name}
    for done in computation.instructions.values():
        if done.opcode != 'recv-done' or not ends.get(done.inputs[0]):
            continue
        send = sends[ends[done.inputs[0]]]
        kind = send.find(r'_xla_megascale_transfer_type="(\w+)"').lower().replace('_', '-')
        first, last = re.search(r'_xla_megascale_target="\{(\d+),(\d+)\}', send.attributes).groups()
        slices = int(last) - int(first) + 1
        size = shape_bytes(send.inputs[0].shape) * (slices if kind == 'all-gather' else 1)
        yield Collective(kind, size * SENT_SHARES[kind](slices), slices, send.name, done.name, network=True)


def _parse_group_size(instruction: Instruction, chips: int) -> int:
    """Parses the size of groups such as `{{0,1},{2,3}}`, `[8,2]<=[16]`, `mesh['axis_0'=4,'axis_1'=4] {'axis_1'}`."""
    if instruction.opcode.startswith('collective-permute'):
        return 2
    if listed := instruction.find(r'\breplica_groups=\{\{([\d,]+)\}'):
        return listed.count(',') + 1
    if shape := instruction.find(r'\breplica_groups=\[([\d,]+)\]<='):
        return math.prod([int(n) for n in shape.split(',')][1:])
    if sizes := instruction.find(r'\breplica_groups=mesh\[([^\]]*)\]'):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", sizes))
        axes = instruction.find(r"\breplica_groups=mesh\[[^{]*\{('[^}]*)\}")  # after the device order, if present
        return math.prod(int(sizes[name]) for name in (re.findall(r"'(\w+)'", axes) if axes else sizes))
    return chips
