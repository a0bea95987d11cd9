"""Reads a compiled program (XLA's HLO as text): computations, their instructions, shapes and loops."""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping

# libtpu's `estimated_cycles` if it has no estimate.
_NO_ESTIMATE = 2**63 - 1
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*?)\)(?:, (.*))?$')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?')
# The operations on scalars that `trip_count` evaluates, and the directions of `compare`.
_OPERATIONS = {'add': operator.add}
_OPERATIONS |= dict.fromkeys(('copy', 'bitcast', 'copy-done', 'copy-start', 'reshape', 'convert'), operator.pos)
_COMPARISONS = {'LT': operator.lt, 'LE': operator.le, 'GT': operator.gt, 'GE': operator.ge, 'NE': operator.ne}
_MAX_TURNS = 100_000  # the maximum number of evaluated iterations


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


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A computation of a program."""

    module: Mapping[str, 'Computation']  # all computations of the program, by name
    instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)  # by name, in execution order

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

    The count is known if the text states it. Otherwise, as in `jax.lax.scan`, the condition must compare constants with
    a counter that starts at a constant and grows by constants.
    """
    if count := loop.find(r'"known_trip_count":\{"n":"(\d+)"\}'):
        return int(count)
    condition, body = loop.called('condition')[0], loop.called('body')[0]
    counters = [x.index for x in condition.instructions.values() if x.opcode == 'get-tuple-element']
    try:
        value = _evaluate(loop.inputs[0].inputs[counters[0]], {}.__getitem__)
        for turns in range(_MAX_TURNS):
            elements = {counters[0]: value}.__getitem__
            if not _evaluate(condition.root, elements):
                return turns
            value = _evaluate(body.root.inputs[counters[0]], elements)
    except (LookupError, ValueError):  # a value is not a function of constants and the counter
        pass
    return None


def _evaluate(instruction: Instruction, argument: Callable[[int], int]) -> int:
    """Evaluates a scalar. `argument` returns an element of the loop's tuple, or a parameter of a fusion.

    Raises:
      LookupError, ValueError: The scalar is not a function of constants and of known arguments.
    """
    if instruction.opcode == 'constant':
        return int(instruction.operands)
    if instruction.opcode == 'parameter':
        return argument(int(instruction.operands))
    if instruction.opcode == 'get-tuple-element' and instruction.inputs[0].opcode == 'parameter':
        return argument(instruction.index)
    if instruction.opcode == 'fusion':
        operand = lambda number: _evaluate(instruction.inputs[number], argument)  # noqa: E731
        return _evaluate(instruction.called('calls')[0].root, operand)
    is_comparison = instruction.opcode == 'compare'
    direction = instruction.find(r'direction=(\w+)')
    operation = _COMPARISONS[direction] if is_comparison else _OPERATIONS[instruction.opcode]
    return operation(*(_evaluate(x, argument) for x in instruction.inputs))
