"""How often a loop runs its body."""

import re

from bertjax.cost.hlo import Computation, Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# A counter from `start` by `step`, compared with `bound`: what is left of the way.
_LEFT = {
    'LT': lambda start, bound: bound - start,
    'LE': lambda start, bound: bound - start + 1,
    'GT': lambda start, bound: start - bound,
    'GE': lambda start, bound: start - bound + 1,
    'NE': lambda start, bound: abs(bound - start),
}


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Executions of the body of a `while`: as the text says, or from where its counter starts, its step and its bound.

    Args:
      module: the program.
      caller: the computation that the loop is in.
      loop: the `while`.

    Returns:
      None where neither is there: a bound that is computed, for example.
    """
    if known := _KNOWN.search(loop.attributes):
        return int(known.group(1))
    (condition,), (body,) = loop.called['condition'], loop.called['body']
    found = _comparison(module, module.computations[condition])
    if found is None:
        return None
    index, bound, direction = found
    start = _start(caller, loop, index)
    step = _step(module, module.computations[body], index)
    if start is None or not step or direction not in _LEFT:
        return None
    return max(-(-_LEFT[direction](start, bound) // abs(step)), 0)


def _comparison(module: Module, condition: Computation) -> tuple[int, int, str] | None:
    """Which of the loop's values is compared, with which number, and how."""
    inner, compare, outer = condition, condition.root, None
    if compare.opcode == 'fusion':
        outer, inner = compare, module.computations[compare.called['calls'][0]]
        compare = inner.root
    direction = re.match(r'\w+', compare.attribute('direction'))
    if compare.opcode != 'compare' or direction is None:
        return None
    sides = [_seen_from_outside(condition, inner, outer, one) for one in inner.operands(compare)]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    value, bound = sides
    if value.opcode != 'get-tuple-element' or _number(bound) is None:
        return None
    return _index(value), _number(bound), direction.group()


def _step(module: Module, body: Computation, index: int) -> int | None:
    """What a turn of the loop adds to one of its values."""
    if body.root.opcode != 'tuple':
        return None
    outer = _resolved(body, body.instructions[body.root.operands[index]])
    inner, add = body, outer
    if outer.opcode == 'fusion':
        inner = module.computations[outer.called['calls'][0]]
        add = inner.root
    if add.opcode != 'add':
        return None
    sides = [_seen_from_outside(body, inner, outer, one) for one in inner.operands(add)]
    counters = [one for one in sides if one and one.opcode == 'get-tuple-element' and _index(one) == index]
    numbers = [number for number in map(_number, sides) if number is not None]
    return numbers[0] if len(counters) == len(numbers) == 1 else None


def _start(caller: Computation, loop: Instruction, index: int) -> int | None:
    values = caller.instructions[loop.operands[0]]
    if values.opcode != 'tuple':
        return None
    return _number(_resolved(caller, caller.instructions[values.operands[index]]))


def _seen_from_outside(
    caller: Computation, inner: Computation, fusion: Instruction | None, one: Instruction
) -> Instruction | None:
    """`one`, or the operand of the fusion that it stands for."""
    one = _resolved(inner, one)
    if one.opcode != 'parameter' or inner is caller or fusion is None:
        return one
    return _resolved(caller, caller.instructions[fusion.operands[int(one.operands[0])]])


def _resolved(computation: Computation, one: Instruction) -> Instruction:
    """What an instruction that only passes its operand on stands for."""
    while one.opcode in ('copy', 'bitcast', 'copy-done', 'copy-start', 'reshape', 'convert'):
        one = computation.instructions[one.operands[0]]
    return one


def _number(one: Instruction | None) -> int | None:
    if one is None or one.opcode != 'constant':
        return None
    return int(one.operands[0]) if re.fullmatch(r'-?\d+', one.operands[0]) else None


def _index(element: Instruction) -> int:
    return int(re.match(r'\d+', element.attribute('index')).group())
