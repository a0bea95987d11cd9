"""A compiled program as text (HLO), read: computations, their instructions, and what these call."""

import dataclasses
import functools
import re
from collections.abc import Mapping

# The compiler's word for what it has no estimate of: the largest int64.
_NO_ESTIMATE = 2**63 - 1
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.-]+) = ')
_OPCODE = re.compile(r'\s*([\w-]+)\(')
_CALLED = re.compile(r'\b(calls|body|condition|to_apply|branch_computations|true_computation|false_computation)=')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_NAME = re.compile(r'%([\w.-]+)')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
      name: unique in the program.
      opcode: such as 'fusion', 'while', 'all-reduce-start'.
      shape: of the result, as it is written, layout included.
      operands: names of instructions of the same computation; of a constant or a parameter its value or number.
      attributes: what stands behind the operands.
      is_root: whether it is the computation's result.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def op_name(self) -> str:
        """Where it comes from, as JAX names it: 'jit(step)/jvp(Model)/encoder/…/dot_general'; '' where not known."""
        found = _OP_NAME.search(self.attributes)
        return found.group(1) if found else ''

    @functools.cached_property
    def cycles(self) -> int | None:
        """The compiler's estimate for one execution; None where it has none."""
        found = _CYCLES.search(self.attributes)
        return int(found.group(1)) if found and int(found.group(1)) != _NO_ESTIMATE else None

    @functools.cached_property
    def called(self) -> Mapping[str, tuple[str, ...]]:
        """Computations by how they are called: {'calls': (…,)}, {'condition': (…,), 'body': (…,)}."""
        found = {}
        for match in _CALLED.finditer(self.attributes):
            rest = self.attributes[match.end() :]
            names = rest[: rest.index('}')] if rest.startswith('{') else re.split(r'[,\s]', rest, maxsplit=1)[0]
            found[match.group(1)] = tuple(name.strip().removeprefix('%') for name in names.strip('{').split(','))
        return found

    def attribute(self, name: str) -> str:
        """What `name=` is followed by, to the end of the line; '' where it is missing."""
        found = re.search(rf'\b{name}=', self.attributes)
        return self.attributes[found.end() :] if found else ''


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they are executed, by name."""

    name: str
    instructions: Mapping[str, Instruction]

    @functools.cached_property
    def root(self) -> Instruction:
        """The result."""
        return next(one for one in self.instructions.values() if one.is_root)

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Those of its operands that are instructions."""
        return [self.instructions[name] for name in instruction.operands if name in self.instructions]

    @functools.cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """Who has an instruction among its operands, by its name."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions.values():
            for name in dict.fromkeys(one.operands):
                found.setdefault(name, []).append(one)
        return found

    @functools.cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        """By their numbers."""
        found = (one for one in self.instructions.values() if one.opcode == 'parameter')
        return {int(one.operands[0]): one for one in found}


@dataclasses.dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the one that it begins with."""

    computations: Mapping[str, Computation]
    entry: Computation


def parse(text: str) -> Module:
    """The program that `compiled.as_text()` gives.

    Raises:
      ValueError: no such text.
    """
    computations, entry, name, instructions = {}, '', '', {}
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name, instructions = header.group(2), {}
            computations[name] = Computation(name, instructions)
            entry = name if header.group(1) else entry
        elif name and (head := _INSTRUCTION.match(line)):
            one = _instruction(head.group(2), line[head.end() :], is_root=bool(head.group(1)))
            instructions[one.name] = one
        elif line.startswith('}'):
            name = ''
    if not entry:
        raise ValueError('no compiled program: it has no ENTRY')
    return Module(computations, computations[entry])


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith('(') else text.index(' ')
    opcode = _OPCODE.match(text, end)
    if opcode is None:
        raise ValueError(f'no instruction: {text[:80]}')
    close = _closing(text, opcode.end() - 1)
    inside = text[opcode.end() : close]
    operands = tuple(_NAME.findall(inside)) or ((inside,) if inside else ())
    return Instruction(name, opcode.group(1), text[:end], operands, text[close + 1 :], is_root)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == '(') - (text[at] == ')')
        if depth == 0:
            return at
    raise ValueError(f'a parenthesis that stays open: {text[:80]}')
