"""The collectives of a compiled program: kind, bytes, chips, and the instructions between which they run."""

import dataclasses
import math
import re
from collections.abc import Iterator

from bertjax.cost.hlo import Computation, Instruction, shape_bytes

# The share of the bytes that each of n chips sends: over rings, which send the least possible (Patarasuk and Yuan,
# Bandwidth optimal all-reduce algorithms, J. Parallel Distrib. Comput. 69, 2009).
SENT = {
    'all-reduce': lambda n: 2 * (n - 1) / n,
    'all-gather': lambda n: (n - 1) / n,
    'reduce-scatter': lambda n: (n - 1) / n,
    'all-to-all': lambda n: (n - 1) / n,
    'ragged-all-to-all': lambda n: (n - 1) / n,
    'collective-broadcast': lambda n: (n - 1) / n,
    'collective-permute': lambda n: 1.0,
}
_CHAIN = r'chain_id="(\d+)"'


@dataclasses.dataclass
class Collective:
    """One collective of a computation, which may be several instructions: a start, fusions that continue it, an end.

    Attributes:
      kind: a key of SENT.
      sent: bytes that each chip sends.
      chips: in a group; the number of slices if it runs between slices.
      first, last: names of the instructions that start and end it; equal if nothing else can run meanwhile.
      network: whether it uses the data centre's network, between slices.
      seconds: time that it takes alone; set by `estimate`.
      exposed: seconds of it that no other work hides; set by `estimate`.
      count: executions per step; set by `estimate`.
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


def is_collective(one: Instruction) -> bool:
    """Whether an instruction is a collective or the start of one."""
    return one.opcode.removesuffix('-start') in SENT


def collectives(computation: Computation, chips: int) -> list[Collective]:
    """The collectives of a computation's instructions and of their fusions, without those of its loops.

    Args:
      computation: of the program.
      chips: that run the program.
    """
    found: dict[str, Collective] = {}
    started: dict[str, str] = {}  # name of the starting instruction -> key
    for one in computation.instructions.values():
        for key in (started[x.name] for x in one.inputs if one.opcode.endswith('-done') and x.name in started):
            found[key].last = one.name
        for inner in filter(is_collective, one.inside()):
            key = _key(one, inner)
            if key in found:
                found[key].last = one.name
            elif not _continues(one, inner):
                found[key] = _collective(one, inner, chips)
                started[one.name] = key
    return [*found.values(), *_between_slices(computation)]


def _collective(one: Instruction, inner: Instruction, chips: int) -> Collective:
    # A fusion of an all-reduce and a slice of its result: each chip only takes its part.
    scatters = one.opcode == 'fusion' and one.called('calls')[0].root.opcode == 'dynamic-slice'
    kind = inner.opcode.removesuffix('-start')
    kind = 'reduce-scatter' if scatters and kind == 'all-reduce' else kind
    group = _group_size(inner, chips)
    operands = sum(shape_bytes(x.shape) for x in inner.inputs)
    size = operands * group if kind == 'all-gather' else operands  # the larger of operands and results
    return Collective(kind, size * SENT[kind](max(group, 1)), group, one.name, one.name)


def _key(one: Instruction, inner: Instruction) -> str:
    """What the parts of a collective share. Several in `shard_map` may have the same channel."""
    channel = inner.find(r'channel_id=(\d+)')
    in_parts = one.opcode == 'fusion' and channel
    return f'{channel} {inner.find(_CHAIN)}' if in_parts else inner.name


def _continues(one: Instruction, inner: Instruction) -> bool:
    """Whether a fusion continues a chain that another computation started before its loop."""
    chained = one.opcode == 'fusion' and inner.find(_CHAIN)
    return bool(chained) and not any('"AsyncCollectiveStart"' in each.attributes for each in one.inside())


def _between_slices(computation: Computation) -> Iterator[Collective]:
    """The parts of collectives that cross slices: libtpu's "megascale" sends to the host and receives the result."""
    rendezvous = r'_xla_host_transfer_rendezvous="([^"]+)".*_xla_megascale_target'
    ends = {one: one.find(rendezvous) for one in computation.instructions.values() if one.opcode in ('send', 'recv')}
    sends = {name: one for one, name in ends.items() if one.opcode == 'send' and name}
    for done in computation.instructions.values():
        if done.opcode != 'recv-done' or not ends.get(done.inputs[0]):
            continue
        send = sends[ends[done.inputs[0]]]
        kind = send.find(r'_xla_megascale_transfer_type="(\w+)"').lower().replace('_', '-')
        first, last = re.search(r'_xla_megascale_target="\{(\d+),(\d+)\}', send.attributes).groups()
        slices = int(last) - int(first) + 1
        size = shape_bytes(send.inputs[0].shape) * (slices if kind == 'all-gather' else 1)
        yield Collective(kind, size * SENT[kind](slices), slices, send.name, done.name, network=True)


def _group_size(one: Instruction, chips: int) -> int:
    """Chips of a group: of `{{0,1},{2,3}}`, `[8,2]<=[16]`, or `mesh['axis_0'=4,'axis_1'=4] {'axis_1'}`."""
    if one.opcode.startswith('collective-permute'):
        return 2
    if listed := one.find(r'\breplica_groups=\{\{([\d,]+)\}'):
        return listed.count(',') + 1
    if shape := one.find(r'\breplica_groups=\[([\d,]+)\]<='):
        return math.prod([int(n) for n in shape.split(',')][1:])
    if sizes := one.find(r'\breplica_groups=mesh\[([^\]]*)\]'):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", sizes))
        axes = one.find(r"\breplica_groups=mesh\[[^{]*\{('[^}]*)\}")  # behind the order of the devices, if there is one
        return math.prod(int(sizes[name]) for name in (re.findall(r"'(\w+)'", axes) if axes else sizes))
    return chips
