"""Which part of a BERT's training step an instruction belongs to.

By the name that JAX gives each operation, 'jit(step)/transpose(jvp(BertForPreTraining))/encoder/…/mlp/up/dot_general':
the modules of `model/` and its scope `dropout`. What has no jvp( in its name is not part of the model and its losses.
"""

import re
from collections.abc import Iterator

from bertjax.cost.hlo import Computation, Instruction, Module

# Names in a path -> the group; the last one in a path decides.
_OF_MODULES = {
    'dropout': 'dropout',
    'attention': 'attention',
    'mlp': 'mlp',
    **dict.fromkeys(('attention_norm', 'mlp_norm', 'norm', 'final_norm', 'layers'), 'norm'),
    'embeddings': 'embeddings',
    **dict.fromkeys(('mlm', 'nsp', 'pooler'), 'head'),
}
_OF_LOOP = ('dynamic_update_slice', 'dynamic_slice', 'dynamic_update_index_in_dim', 'dynamic_index_in_dim')
# What moves or renames numbers and computes none.
_FREE = {'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'broadcast', 'iota', 'partition-id'}
_MOVES = {'copy', 'transpose', 'reshape', 'slice', 'concatenate', 'pad', 'reverse', 'copy-start', 'copy-done'}
_SLICES = {'dynamic-update-slice', 'dynamic-slice'}
PRODUCTS = {'dot', 'convolution'}
GROUPS = (
    'attention', 'mlp', 'norm', 'dropout', 'embeddings', 'head', 'optimiser', 'stacks', 'casts', 'copies',
    'collectives', 'other',
)  # fmt: skip


def group_of(module: Module, computation: Computation, one: Instruction) -> tuple[str, frozenset[str]]:
    """The group that an executed instruction counts in, and all that it holds work of.

    A fusion counts as its matrix product does; without one, as its result does. What only changes types is a cast, what
    only moves numbers a copy, whatever module asked for it; what stacks the values that the loop over the blocks keeps
    for the backward pass, and takes them from there, are the stacks.
    """
    inner = list(within(module, one))
    work = [each for each in inner if each.opcode not in _FREE and each.opcode != 'fusion']
    held = frozenset(name for name in (_of_name(each.op_name) for each in work if each.op_name) if name)
    opcodes = {each.opcode for each in work}
    if opcodes and opcodes <= {'convert', *_MOVES}:
        return ('casts' if 'convert' in opcodes else 'copies'), held
    products = [each for each in work if each.opcode in PRODUCTS]
    decisive = products[0].op_name if products else one.op_name
    if not products and opcodes & _SLICES and any(name in one.op_name for name in _OF_LOOP):
        return 'stacks', held | {'stacks'}
    group = _of_name(decisive) or _inherited(module, computation, one, held)
    return group, held | {group}


def within(module: Module, one: Instruction) -> Iterator[Instruction]:
    """The instructions of a fusion, of fusions in it too; of anything else itself."""
    if one.opcode == 'fusion':
        for each in module.computations[one.called['calls'][0]].instructions.values():
            yield from within(module, each)
    else:
        yield one


def _of_name(op_name: str) -> str:
    """'' for a name without a path, which a pass of the compiler gave."""
    parts = op_name.split('/')
    if len(parts) == 1:
        return ''
    for part in reversed(parts):
        name = re.sub(r'_\d+$', '', part)  # of a block that is not scanned, layers_0
        if name in _OF_MODULES:
            return _OF_MODULES[name]
    if not re.search(r'\bjvp\(', op_name):
        return 'optimiser'
    return 'stacks' if 'encoder' in parts else 'head'


def _inherited(module: Module, computation: Computation, one: Instruction, held: frozenset[str]) -> str:
    """Of an instruction that has no name of its own: the one group that it holds, or that of what it works on."""
    if len(held) == 1:
        return next(iter(held))
    seen, behind = set(), [one]
    while behind:
        for operand in computation.operands(behind.pop(0)):
            if operand.name not in seen and operand.opcode not in ('parameter', 'constant'):
                seen.add(operand.name)
                names = [each.op_name for each in within(module, operand)]
                if found := next(filter(None, map(_of_name, [operand.op_name, *names])), ''):
                    return found
                behind.append(operand)
    begins_a_loop = all(user.opcode == 'tuple' for user in computation.users.get(one.name, ()))
    return 'stacks' if begins_a_loop else 'other'
