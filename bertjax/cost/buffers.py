"""What lies in a chip's memory at the fullest moment of a step, from the text."""

import collections
import dataclasses

from bertjax.cost.hlo import Computation, Instruction, Module
from bertjax.cost.shapes import Array, arrays

# What gives the memory of its operands another name.
_RENAMES = {'bitcast', 'while', 'opt-barrier', 'optimization-barrier', 'copy-done', 'add-dependency'}
# What passes its operand on as it is, or as another type.
_PASSES_ON = {
    'bitcast', 'convert', 'copy', 'copy-done', 'copy-start', 'slice-done', 'slice-start', 'get-tuple-element',
    'custom-call',
}  # fmt: skip
_REPLACES = 'dynamic-update-slice'


@dataclasses.dataclass
class Buffer:
    """An array that the program makes in the chip's memory.

    Attributes:
      array: shape, type and layout.
      op_name: of what it holds, as far as that is known.
      first: place of the instruction that makes it, in the order of execution of its computation.
      last: ... of the last that uses it.
    """

    array: Array
    op_name: str
    first: int
    last: int

    @property
    def is_forward(self) -> bool:
        """Whether it comes from the forward pass: an activation."""
        return 'jvp(' in self.op_name and 'transpose(' not in self.op_name


def fullest(module: Module, computation: Computation | None = None) -> list[Buffer]:
    """The arrays of the moment at which most memory is in use, the largest first.

    Without what the program is given, and what it gives, which takes the place of what was donated.

    By the order of the text, with an array alive from the instruction that makes it to the last that uses it, and loops
    and slices replaced in place. The compiler, which can do better and worse, has the last word on the sum.
    """
    computation = computation or module.entry
    made = _buffers(module, computation)
    inner = {
        place: fullest(module, module.computations[one.called['body'][0]])
        for place, one in enumerate(computation.instructions.values())
        if one.opcode == 'while'
    }
    changes: dict[int, int] = collections.Counter()  # by place: how much more is in use from there on
    for buffer in made:
        changes[buffer.first] += buffer.array.stored_bytes
        changes[buffer.last + 1] -= buffer.array.stored_bytes
    most, at, in_use = -1, 0, 0
    for place in sorted({*changes, *inner}):
        in_use += changes[place]
        if in_use + stored(inner.get(place, [])) > most:
            most, at = in_use + stored(inner.get(place, [])), place
    alive = [buffer for buffer in made if buffer.first <= at <= buffer.last] + inner.get(at, [])
    return sorted(alive, key=lambda buffer: -buffer.array.stored_bytes)


def stored(buffers: list[Buffer]) -> int:
    """Bytes of all of them in memory, with what their layouts leave empty."""
    return sum(buffer.array.stored_bytes for buffer in buffers)


def _buffers(module: Module, computation: Computation) -> list[Buffer]:
    made: list[Buffer] = []
    held: dict[str, list[Buffer | None]] = {}  # by instruction: what each array of its result is; None: given
    for place, one in enumerate(computation.instructions.values()):
        given = [held.get(name, []) for name in one.operands]
        flat = [buffer for each in given for buffer in each]
        if one.opcode != 'tuple':  # which only passes them on
            for buffer in filter(None, flat):
                buffer.last = place
        found = arrays(one.shape)
        if one.opcode == 'tuple' or (one.opcode in _RENAMES and len(flat) >= len(found)):
            held[one.name] = flat[: len(found)]
        elif one.opcode == 'get-tuple-element':
            held[one.name] = [flat[_index(one)]] if len(found) == 1 and flat else [None] * len(found)
        else:
            replaced = _in_place(module, one)
            new = one.opcode not in ('parameter', 'constant')
            held[one.name] = results = []
            for i, array in enumerate(found):
                if replaced.get(i) is not None and len(given[replaced[i]]) == 1:
                    results.append(given[replaced[i]][0])
                else:
                    results.append(Buffer(array, one.op_name, place, place) if new and array.in_hbm else None)
                    made += results[-1:] if results[-1] else []
        if one.opcode == 'while':
            for i, buffer in enumerate(held[one.name]):
                if buffer:
                    buffer.op_name = _stacked(module, one, i) or buffer.op_name
    given_back = {id(buffer) for buffer in held[computation.root.name]} if computation is module.entry else set()
    return [buffer for buffer in made if id(buffer) not in given_back]


def _in_place(module: Module, one: Instruction) -> dict[int, int]:
    """{number of a result: number of the operand of which it is a slice replaced}."""
    if one.opcode == _REPLACES:
        return {0: 0}
    found = {}
    if one.opcode == 'fusion':
        inner = module.computations[one.called['calls'][0]]
        results = inner.operands(inner.root) if inner.root.opcode == 'tuple' else [inner.root]
        for i, result in enumerate(results):
            result = _behind(inner, result, {'bitcast'})
            if result.opcode == _REPLACES:
                target = _behind(inner, inner.instructions[result.operands[0]], {'bitcast'})
                if target.opcode == 'parameter':
                    found[i] = int(target.operands[0])
    return found


def _stacked(module: Module, loop: Instruction, index: int) -> str:
    """Where the slices come from that a loop replaces one by one in its value `index`; '' where it does not."""
    body = module.computations[loop.called['body'][0]]
    value, place = body.instructions[body.root.operands[index]], 0
    if value.opcode == 'get-tuple-element':
        value, place = body.operands(value)[0], _index(value)
    inner, replaced = body, value
    if value.opcode == 'fusion':
        inner = module.computations[value.called['calls'][0]]
        replaced = inner.operands(inner.root)[place] if inner.root.opcode == 'tuple' else inner.root
    replaced = _behind(inner, replaced)
    if replaced.opcode != _REPLACES:
        return ''
    taken = _behind(inner, inner.instructions[replaced.operands[1]])
    if taken.opcode == 'parameter' and inner is not body:
        taken = _behind(body, body.instructions[value.operands[int(taken.operands[0])]])
    return taken.op_name


def _behind(computation: Computation, one: Instruction, passes_on: set[str] = _PASSES_ON) -> Instruction:
    while one.opcode in passes_on and one.operands[0] in computation.instructions:
        one = computation.instructions[one.operands[0]]
    return one


def _index(element: Instruction) -> int:
    return int(element.attribute('index').split(',')[0])
