"""Reads a compiled program (XLA's HLO as text): computations, their instructions, shapes and loops."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

# libtpu writes the largest int64 if it has no estimate.
_NO_ESTIMATE = 2**63 - 1
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*?)\)(?:, (.*))?$')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?')
# Opcodes whose result has the values of the operand, perhaps in another shape, layout or type.
_TRANSPARENT = {'copy', 'bitcast', 'copy-done', 'copy-start', 'reshape', 'convert'}


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """An instruction: one line of a computation.

    Attributes:
      computation: The computation that contains the instruction.
      is_root: Whether the instruction is the result of its computation.
      name: The name, which is unique in the program.
      shape: The shape of the result as text, with its layout.
      opcode: The opcode, such as 'fusion', 'while' or 'all-reduce-start'.
      operands: The text between the parentheses: names of instructions, the value of a constant, or the number of a
        parameter.
      attributes: The text after the operands.
    """

    computation: 'Computation'
    is_root: bool
    name: str
    shape: str
    opcode: str
    operands: str
    attributes: str

    @functools.cached_property
    def inputs(self) -> tuple['Instruction', ...]:
        """The operands that are instructions of the same computation."""
        instructions = self.computation.instructions
        return tuple(instructions[name] for name in re.findall(r'%([\w.-]+)', self.operands) if name in instructions)

    @functools.cached_property
    def op_name(self) -> str:
        """JAX's name of the operation, such as 'jit(step)/jvp(Model)/encoder/…/dot_general', or '' if unknown."""
        return self.find(r'op_name="((?:[^"\\]|\\.)*)"') or ''

    @functools.cached_property
    def cycles(self) -> int | None:
        """The compiler's estimate of the cycles of one execution, or None if there is none."""
        cycles = int(self.find(r'"estimated_cycles":"?(\d+)') or _NO_ESTIMATE)
        return None if cycles == _NO_ESTIMATE else cycles

    @property
    def index(self) -> int:
        """The tuple index of a get-tuple-element."""
        return int(self.find(r'\bindex=(\d+)'))

    def find(self, pattern: str) -> str | None:
        """Returns the first group of a regular expression in the attributes, or None without a match."""
        match = re.search(pattern, self.attributes)
        return match.group(1) if match else None

    def called(self, *attributes: str) -> list['Computation']:
        """Returns the computations that are named by attributes such as 'calls', 'body' or 'branch_computations'."""
        texts = (self.find(rf'\b{name}=(\{{[^}}]*\}}|[^\s,]+)') or '' for name in attributes)
        return [self.computation.module[name] for text in texts for name in re.findall(r'[\w.-]+', text)]

    def inside(self) -> Iterator['Instruction']:
        """Yields the instructions inside a fusion or an asynchronous wrapper, recursively; otherwise, yields `self`."""
        if self.opcode in ('fusion', 'async-start'):
            for instruction in self.called('calls')[0].instructions.values():
                yield from instruction.inside()
        else:
            yield self

    def source(self) -> 'Instruction':
        """Returns the instruction that computes the value, before any copies and conversions."""
        return self.inputs[0].source() if self.opcode in _TRANSPARENT else self


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A computation of a program.

    Attributes:
      module: All computations of the program, by name.
      instructions: The instructions by name, in execution order.
    """

    module: Mapping[str, 'Computation']
    instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def root(self) -> Instruction:
        """The instruction that is the result."""
        return next(instruction for instruction in self.instructions.values() if instruction.is_root)


def parse(text: str) -> Computation:
    """Parses the text of `compiled.as_text()` and returns the program's entry computation.

    Raises:
      ValueError: The text is not a compiled program.
    """
    module: dict[str, Computation] = {}
    entry = None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            computation = module[header.group(2)] = Computation(module)
            entry = computation if header.group(1) else entry
        elif module and (match := _INSTRUCTION.match(line)):
            root, name, *rest = match.groups(default='')
            computation.instructions[name] = Instruction(computation, bool(root), name, *rest)
    if entry is None:
        raise ValueError('not a compiled program: it has no ENTRY')
    return entry


def shape_bytes(shape: str, *, hbm_only: bool = False) -> int:
    """Returns the bytes of all arrays in a shape such as `f32[64,128]{1,0:T(8,128)}`, or in a tuple of such shapes.

    `hbm_only` ignores arrays in other memories, such as `S(1)` on the chip.
    """
    total = 0
    for dtype, dims, layout in _ARRAY.findall(shape):
        bits = 8 if dtype == 'pred' else int((re.search(r'\d+', dtype) or [0])[0])  # 'token' has 0 bits
        is_ignored = hbm_only and re.search(r'S\([^0]\)', layout)
        total += 0 if is_ignored else math.prod(int(n) for n in dims.split(',') if n) * bits // 8
    return total


def trip_count(loop: Instruction) -> int | None:
    """Returns the trip count of a `while`, or None if it is unknown.

    The count is known if the text states it, or if start, step and bound are constants, as in `jax.lax.scan`.
    """
    if count := loop.find(r'"known_trip_count":\{"n":"(\d+)"\}'):
        return int(count)
    compare = loop.called('condition')[0].root
    counter, bound = _find_operands(compare)
    if counter is None or counter.opcode != 'get-tuple-element':
        return None
    direction = next(
        (instruction.find(r'direction=(\w+)') for instruction in compare.inside() if instruction.opcode == 'compare'),
        None,
    )
    start = _constant_value(loop.inputs[0].inputs[counter.index]) if loop.inputs[0].opcode == 'tuple' else None
    step = _loop_step(loop.called('body')[0], counter.index)
    bound = _constant_value(bound)
    if None in (start, step, bound) or direction not in ('LT', 'LE', 'GT', 'GE', 'NE') or not step:
        return None
    distance = (bound - start) * (1 if step > 0 else -1) + (direction in ('LE', 'GE'))
    return max(-(-distance // abs(step)), 0)


def _find_operands(instruction: Instruction) -> tuple[Instruction | None, Instruction | None]:
    """Returns the sources of both operands, or (None, None) if there are not two. A fusion counts as its root."""
    root = instruction.called('calls')[0].root if instruction.opcode == 'fusion' else instruction
    sides = [side.source() for side in root.inputs]
    if instruction is not root:
        sides = [
            instruction.inputs[int(side.operands)].source() if side.opcode == 'parameter' else side for side in sides
        ]
    return (sides[0], sides[1]) if len(sides) == 2 else (None, None)


def _loop_step(body: Computation, index: int) -> int | None:
    """Returns the constant that the body adds to the loop's value at `index`, or None if it adds no constant."""
    if body.root.opcode != 'tuple':
        return None
    value = body.root.inputs[index].source()
    root = value.called('calls')[0].root if value.opcode == 'fusion' else value
    counter, added = _find_operands(value)
    if _constant_value(counter) is not None:
        counter, added = added, counter
    adds = root.opcode == 'add' and counter is not None and counter.opcode == 'get-tuple-element'
    return _constant_value(added) if adds and counter.index == index else None


def _constant_value(instruction: Instruction | None) -> int | None:
    source = instruction and instruction.source()
    is_constant = source and source.opcode == 'constant' and re.fullmatch(r'-?\d+', source.operands)
    return int(source.operands) if is_constant else None
