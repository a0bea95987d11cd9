"""What a program's chips send each other: which collective, how many bytes, over how many chips, and when."""

import dataclasses
import math
import re
from collections.abc import Iterator

from bertjax.cost.groups import within
from bertjax.cost.hlo import Computation, Instruction, Module
from bertjax.cost.shapes import total_bytes

# What each of n chips sends, as a share of the whole: over rings, which send the least that is possible (Patarasuk and
# Yuan, Bandwidth optimal all-reduce algorithms, J. Parallel Distrib. Comput. 69, 2009).
SENT = {
    'all-reduce': lambda n: 2 * (n - 1) / n,
    'all-gather': lambda n: (n - 1) / n,
    'reduce-scatter': lambda n: (n - 1) / n,
    'all-to-all': lambda n: (n - 1) / n,
    'ragged-all-to-all': lambda n: (n - 1) / n,
    'collective-broadcast': lambda n: (n - 1) / n,
    'collective-permute': lambda n: 1.0,
}
COLLECTIVES = tuple(SENT)
_CHANNEL = re.compile(r'channel_id=(\d+)')
_CHAIN = re.compile(r'chain_id="(\d+)"')
# Of a transfer between slices, libtpu's "megascale": what its two ends share, what it is, and which slices take part.
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]+)".*_xla_megascale_target')
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="\{(\d+),(\d+)\}')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a computation, which may be several instructions: its start, fusions that carry it on, its end.

    Attributes:
      name: of its first instruction.
      kind: one of COLLECTIVES.
      bytes: of the larger side, operands or results, on a chip.
      sent: bytes that each chip sends.
      chips: that take part in a group; one of each slice where it goes between slices.
      op_name: where it comes from.
      first: instruction of the computation with which it begins.
      last: ... and with which it ends; the same one where nothing else can go on meanwhile.
      network: whether it goes over the data centre's network, between slices.
    """

    name: str
    kind: str
    bytes: int
    sent: float
    chips: int
    op_name: str
    first: str
    last: str
    network: bool = False


def collectives(module: Module, computation: Computation, chips: int) -> list[Collective]:
    """Those of a computation's own instructions and of their fusions; not those of loops in it.

    Args:
      module: the program.
      computation: of it.
      chips: that run the program.
    """
    found: dict[str, Collective] = {}
    begun: dict[str, str] = {}  # name of an instruction that begins one -> its key
    for one in computation.instructions.values():
        ends = one.opcode.endswith('-done') and next((begun[name] for name in one.operands if name in begun), None)
        if ends:
            found[ends] = dataclasses.replace(found[ends], last=one.name)
        for inner_of, inner in _inside(module, computation, one):
            kind = 'reduce-scatter' if _scattered(module, one) else inner.opcode.removesuffix('-start')
            key = _key(one, inner)
            if key not in found and _carries_on(module, one, inner):
                continue  # what another computation has begun, while a loop runs
            if key in found:
                found[key] = dataclasses.replace(found[key], last=one.name)
                continue
            group = _group_size(inner, chips)
            size = _bytes(inner_of, inner, group)
            sent = size * SENT[kind](max(group, 1))
            op_name = inner.op_name or one.op_name
            found[key] = Collective(one.name, kind, size, sent, group, op_name, one.name, one.name)
            begun[one.name] = key
    return [*found.values(), *_between_slices(computation)]


def _between_slices(computation: Computation) -> Iterator[Collective]:
    """What libtpu makes of a collective over several slices beside its parts within them: each chip hands its share to
    the host, which exchanges it over the network, and takes the result back."""
    sent = {one.name: one for one in computation.instructions.values() if _RENDEZVOUS.search(one.attributes)}
    begun = {_RENDEZVOUS.search(one.attributes).group(1): one for one in sent.values() if one.opcode == 'send'}
    for done in computation.instructions.values():
        if done.opcode != 'recv-done' or done.operands[0] not in sent:
            continue
        send = begun[_RENDEZVOUS.search(sent[done.operands[0]].attributes).group(1)]
        kind = _TRANSFER.search(send.attributes).group(1).lower().replace('_', '-')
        first, last = _TARGET.search(send.attributes).groups()
        slices = int(last) - int(first) + 1
        size = total_bytes(computation.operands(send)[0].shape) * (slices if kind == 'all-gather' else 1)
        share = size * SENT[kind](slices)
        yield Collective(send.name, kind, size, share, slices, send.op_name, send.name, done.name, network=True)


def _key(one: Instruction, inner: Instruction) -> str:
    """What the parts of a collective have in common. Several that stand in `shard_map` may share a channel."""
    channel = _CHANNEL.search(inner.attributes)
    if one.opcode != 'fusion' or channel is None:
        return inner.name
    chain = _CHAIN.search(inner.attributes)
    return f'{channel.group(1)} {chain.group(1) if chain else ""}'


def _carries_on(module: Module, one: Instruction, inner: Instruction) -> bool:
    """Whether a fusion is a part of a chain, and not the one with which that begins."""
    begins = any('"AsyncCollectiveStart"' in each.attributes for each in within(module, one))
    return one.opcode == 'fusion' and bool(_CHAIN.search(inner.attributes)) and not begins


def _inside(module: Module, computation: Computation, one: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """Instructions that are collectives, of an instruction or of what it wraps, with the computation they are in."""
    if one.opcode.removesuffix('-start') in SENT:
        yield computation, one
    elif one.opcode in ('fusion', 'async-start'):
        inner = module.computations[one.called['calls'][0]]
        for each in inner.instructions.values():
            yield from _inside(module, inner, each)


def _scattered(module: Module, one: Instruction) -> bool:
    """Whether of a reduction each chip only takes its part: a fusion of an all-reduce with a slice of it."""
    if one.opcode != 'fusion':
        return False
    opcodes = {each.opcode for each in within(module, one)}
    return 'all-reduce' in opcodes and module.computations[one.called['calls'][0]].root.opcode == 'dynamic-slice'


def _bytes(computation: Computation, one: Instruction, group: int) -> int:
    """Of the larger side: before a scattering, after a gathering."""
    operands = sum(total_bytes(operand.shape) for operand in computation.operands(one))
    return operands * group if one.opcode.startswith('all-gather') else operands


def _group_size(one: Instruction, chips: int) -> int:
    """Chips of a group: of `{{0,1},{2,3}}`, `[8,2]<=[16]`, or `mesh['axis_0'=4,'axis_1'=4] {'axis_1'}`."""
    text = one.attribute('replica_groups')
    if one.opcode.startswith('collective-permute'):
        return 2
    if match := re.match(r'\{\{([\d,]+)\}', text):
        return match.group(1).count(',') + 1
    if match := re.match(r'\[([\d,]+)\]<=', text):
        return math.prod([int(n) for n in match.group(1).split(',')][1:])
    if match := re.match(r'mesh\[([^\]]*)\]', text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match.group(1)))
        axes = re.search(r'\{([^}]*)\}', text[match.end() :])
        names = re.findall(r"'(\w+)'(?!=)", axes.group(1)) if axes else list(sizes)
        return math.prod(int(sizes[name]) for name in names)
    return chips
