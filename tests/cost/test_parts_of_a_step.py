"""Which part of a step an instruction counts in, and what fills the memory."""

import pathlib
import re

import pytest
from hlo_texts import CYCLES, PATH, named, straight

from bertjax.cost.buffers import fullest, stored
from bertjax.cost.groups import GROUPS, group_of
from bertjax.cost.hlo import parse

BACK = PATH.replace('jvp(Bert)', 'transpose(jvp(Bert))')


def _group(line: str, computations: str = '') -> tuple[str, frozenset[str]]:
    module = parse(straight(line, computations=computations))
    return group_of(module, module.entry, list(module.entry.instructions.values())[-1])


@pytest.mark.parametrize(
    ('path', 'group'),
    [
        (f'{PATH}/attention/query/dot_general', 'attention'),
        (f'{PATH}/attention/dropout/select_n', 'dropout'),
        (f'{BACK}/mlp/up/mul', 'mlp'),
        (f'{PATH}/mlp_norm/reduce_sum', 'norm'),
        (f'{PATH}/add', 'norm'),  # a residual path
        ('jit(step)/jvp(Bert)/encoder/layers_7/add', 'norm'),
        ('jit(step)/jvp(Bert)/encoder/embeddings/token/gather', 'embeddings'),
        ('jit(step)/jvp(Bert)/encoder/broadcast_in_dim', 'stacks'),
        ('jit(step)/transpose(jvp(Bert))/mlm/dot_general', 'head'),
        ('jit(step)/jvp()/reduce_max', 'head'),  # the loss
        ('jit(step)/sqrt', 'optimiser'),
    ],
)
def test_by_the_name_of_the_operation(path: str, group: str):
    assert _group(f'ROOT %r = f32[8] negate(%a), {named(path)}')[0] == group


def test_the_docs_name_every_part(repository: pathlib.Path):
    page = (repository / 'docs' / 'performance.md').read_text(encoding='utf-8')
    table = page.partition('### The parts of a step')[2].partition('**Fusions mix')[0]
    named_there = [name for row in re.findall(r'^\| ([a-z, ]+) \|', table, re.MULTILINE) for name in row.split(', ')]
    assert sorted(name for name in named_there if name != 'part') == sorted(GROUPS)


def _fusion(*lines: str) -> str:
    return '\n'.join(['%fused (p: f32[8]) -> f32[8] {', '  %p = f32[8]{0} parameter(0)', *lines, '}'])


def _call(path: str) -> str:
    return f'ROOT %f = f32[8]{{0}} fusion(%a), kind=kLoop, calls=%fused, {named(path)}'


def test_a_fusion_counts_where_its_product_does():
    fused = _fusion(
        f'  %d = f32[8]{{0}} convolution(%p, %p), dim_labels=bf_io->bf, {named(PATH + "/mlp/down/dot_general")}',
        f'  ROOT %n = f32[8]{{0}} add(%d, %p), {named(PATH + "/mlp_norm/add")}',
    )
    assert _group(_call(f'{PATH}/mlp_norm/add'), fused) == ('mlp', {'mlp', 'norm'})


def test_a_fusion_without_a_product_counts_where_its_result_does():
    fused = _fusion(
        f'  %d = f32[8]{{0}} multiply(%p, %p), {named(PATH + "/dropout/mul")}',
        f'  ROOT %n = f32[8]{{0}} add(%d, %p), {named(PATH + "/mlp_norm/add")}',
    )
    assert _group(_call(f'{PATH}/mlp_norm/add'), fused) == ('norm', {'dropout', 'norm'})


def test_casts_and_copies_whoever_wants_them():
    cast = _fusion(f'  ROOT %c = bf16[8]{{0}} convert(%p), {named(PATH + "/mlp/up/convert")}')
    assert _group(_call(f'{PATH}/mlp/up/convert'), cast)[0] == 'casts'
    moved = _fusion(f'  ROOT %c = f32[8]{{0}} transpose(%p), dimensions={{0}}, {named(PATH + "/mlp/up/transpose")}')
    assert _group(_call(f'{PATH}/mlp/up/transpose'), moved)[0] == 'copies'


def test_what_a_loop_keeps_are_the_stacks():
    path = 'jit(step)/jvp(Bert)/encoder/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice'
    fused = _fusion(f'  ROOT %u = f32[8]{{0}} dynamic-update-slice(%p, %p, %p), {named(path)}')
    assert _group(_call(path), fused)[0] == 'stacks'


def test_without_a_name_that_of_what_it_works_on():
    bits = f'%bits = u32[8]{{0}} xor(%a, %a), {named(PATH + "/attention/dropout/xor")}'
    module = parse(straight(bits, f'ROOT %b = u32[8,2]{{1,0}} broadcast(%bits), dimensions={{0}}, {CYCLES % 9}'))
    assert group_of(module, module.entry, module.entry.instructions['b'])[0] == 'dropout'


def test_the_fullest_moment():
    """%x and %y live at once, %z takes the place of %x; what is given and what is the result do not count."""
    names = [f'metadata={{op_name="jit(step)/{way}"}}' for way in ('jvp(M)/a', 'transpose(jvp(M))/b', 'c')]
    lines = [
        f'%x = f32[2000000]{{0}} negate(%a), {names[0]}',
        f'%y = f32[1000000]{{0}} slice(%x), slice={{[0:1000000]}}, {names[1]}',
        '%small = f32[1000]{0:S(1)} slice(%y), slice={[0:1000]}',  # on the chip itself
        f'%z = f32[500000]{{0}} slice(%y), slice={{[0:500000]}}, {names[2]}',
        'ROOT %r = f32[2000000]{0} pad(%z, %small)',
    ]
    alive = fullest(parse(straight(*lines)))
    assert [(str(buffer.array), buffer.is_forward) for buffer in alive] == [
        ('f32[2000000]', True),
        ('f32[1000000]', False),
    ]
    assert stored(alive) == 12_000_000
