"""What an instruction computes and moves: FLOPs and bytes, from the text alone."""

import math
import re

from bertjax.cost.groups import PRODUCTS
from bertjax.cost.hlo import Computation, Instruction, Module
from bertjax.cost.shapes import arrays, total_bytes

_COST = re.compile(r'"cost_estimate":\{([^}]*)\}')
_DILATED = re.compile(r'lhs_dilate=([\dx]+)')
_SLICES = {'dynamic-slice', 'slice', 'gather'}
_REPLACES = 'dynamic-update-slice'
_KERNEL = 'tpu_custom_call'  # the target of kernels that were written by hand; others are the compiler's own notes


def is_kernel(one: Instruction) -> bool:
    """Whether it is a kernel written by hand, which the compiler estimates nothing for."""
    return one.opcode == 'custom-call' and (f'"{_KERNEL}"' in one.attributes or bool(_COST.search(one.attributes)))


def kernel_work(computation: Computation, one: Instruction) -> tuple[float, float]:
    """FLOPs and bytes of a kernel: as its author states them (`pl.CostEstimate`), else 0, and operands and results."""
    stated = _COST.search(one.attributes)
    if stated is None:
        return 0.0, float(moved_bytes(computation, one))
    values = {name: float(value) for name, value in re.findall(r'"(\w+)":"?(-?[\d.e+]+)', stated.group(1))}
    return values.get('flops', 0.0), values.get('bytes_accessed', 0.0) or float(moved_bytes(computation, one))


def moved_bytes(computation: Computation, one: Instruction) -> int:
    """Operands and results, each once."""
    return total_bytes(one.shape) + sum(total_bytes(operand.shape) for operand in computation.operands(one))


def hbm_bytes(module: Module, computation: Computation, one: Instruction) -> int:
    """What an instruction reads and writes in the chip's large memory.

    Of an array of which it takes or replaces a slice, as those are that a loop over blocks stacks, the slice.
    """
    if one.opcode != 'fusion':
        return _sliced(one, [operand.shape for operand in computation.operands(one)])
    inner = module.computations[one.called['calls'][0]]
    read = sum(
        min(_read(module, inner, inner.parameters[i]), _in_hbm(computation.instructions[name].shape))
        for i, name in enumerate(one.operands)
        if i in inner.parameters
    )
    return read + _written(inner, one)


def _in_hbm(shape: str) -> int:
    return sum(array.bytes for array in arrays(shape) if array.in_hbm)


def _sliced(one: Instruction, operands: list[str]) -> int:
    if one.opcode in _SLICES:
        return 2 * _in_hbm(one.shape)
    if one.opcode == _REPLACES:
        return 2 * total_bytes(operands[1]) if _in_hbm(one.shape) else 0
    return _in_hbm(one.shape) + sum(map(_in_hbm, operands))


def _read(module: Module, inner: Computation, value: Instruction) -> int:
    """What a fusion reads of one of its parameters, wherever that lies."""
    whole, read = total_bytes(value.shape), 0
    for user in inner.users.get(value.name, ()):
        if user.opcode == 'bitcast':
            read += _read(module, inner, user)
        elif user.opcode in _SLICES and user.operands[0] == value.name:
            read += total_bytes(user.shape)
        elif user.opcode == 'fusion':
            nested = module.computations[user.called['calls'][0]]
            places = [i for i, name in enumerate(user.operands) if name == value.name]
            read += sum(_read(module, nested, nested.parameters[i]) for i in places)
        elif user.opcode != _REPLACES or user.operands[0] != value.name:  # replaced in place
            read += whole
    return min(read, whole)


def _written(inner: Computation, fusion: Instruction) -> int:
    root = inner.root
    results = inner.operands(root) if root.opcode == 'tuple' else [root]
    written = 0
    for result, array in zip(results, arrays(fusion.shape), strict=False):
        while result.opcode == 'bitcast':
            result = inner.instructions[result.operands[0]]
        size = total_bytes(inner.instructions[result.operands[1]].shape) if result.opcode == _REPLACES else array.bytes
        written += size if array.in_hbm else 0
    return written


def product_flops(module: Module, computation: Computation, one: Instruction) -> float:
    """Floating point operations of the matrix products in an instruction: 2 a multiplication and addition."""
    if one.opcode == 'fusion':
        inner = module.computations[one.called['calls'][0]]
        return sum(product_flops(module, inner, each) for each in inner.instructions.values())
    return _flops(computation, one) if one.opcode in PRODUCTS else 0.0


def _flops(computation: Computation, one: Instruction) -> float:
    """Of the product of [B, M, K] with [B, K, N]: 2·B·M·K·N = 2·√(BMK · BKN · BMN / B).

    For TPUs products are convolutions. Batch dimensions are those in which a window of as many positions goes over a
    left side that is dilated by as much: the product of these factors is B.
    """
    sizes = [math.prod(array.dims) for each in computation.operands(one) for array in arrays(each.shape)]
    result = math.prod(arrays(one.shape)[0].dims)
    dilated = _DILATED.search(one.attribute('window'))
    batch = math.prod(int(n) for n in dilated.group(1).split('x')) if dilated else _batch(computation, one)
    return 2.0 * math.sqrt(sizes[0] * sizes[1] * result / max(batch, 1))


def _batch(computation: Computation, one: Instruction) -> int:
    dims = re.match(r'\{([\d,]*)\}', one.attribute('lhs_batch_dims'))
    shape = arrays(computation.operands(one)[0].shape)[0].dims
    return math.prod(shape[int(i)] for i in dims.group(1).split(',') if i) if dims else 1
