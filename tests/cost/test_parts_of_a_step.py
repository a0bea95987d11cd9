"""Tests to which part of a step an instruction belongs."""

import pathlib
import re

import pytest
from hlo_texts import CYCLES, PATH, named, straight

from bertjax.cost.estimate import PARTS, part_of
from bertjax.cost.hlo import parse

BACK = PATH.replace('jvp(Bert)', 'transpose(jvp(Bert))')


def _part(line: str, computations: str = '') -> str:
    return part_of(parse(straight(line, computations=computations)).root)


@pytest.mark.parametrize(
    ('path', 'part'),
    [
        (f'{PATH}/attention/query/dot_general', 'attention'),
        (f'{PATH}/attention/dropout/select_n', 'dropout'),
        (f'{BACK}/mlp/up/mul', 'mlp'),
        (f'{PATH}/mlp_norm/reduce_sum', 'norm'),
        (f'{PATH}/add', 'norm'),  # A residual connection.
        ('jit(step)/jvp(Bert)/encoder/layers_7/add', 'norm'),
        ('jit(step)/jvp(Bert)/encoder/embeddings/token/gather', 'embeddings'),
        ('jit(step)/jvp(Bert)/encoder/broadcast_in_dim', 'stacks'),
        ('jit(step)/transpose(jvp(Bert))/mlm/dot_general', 'head'),
        ('jit(step)/jvp()/reduce_max', 'head'),  # The loss.
        ('jit(step)/sqrt', 'optimizer'),
    ],
)
def test_the_name_of_an_operation_decides_its_part(path: str, part: str):
    assert _part(f'ROOT %r = f32[8] negate(%a), {named(path)}') == part


def test_the_docs_name_every_part(repository: pathlib.Path):
    page = (repository / 'docs' / 'performance.md').read_text(encoding='utf-8')
    table = page.partition('### The parts of a step')[2].partition('**Fusions mix')[0]
    documented = [name for row in re.findall(r'^\| ([a-z, ]+) \|', table, re.MULTILINE) for name in row.split(', ')]
    assert sorted(name for name in documented if name != 'part') == sorted(PARTS)


def _fusion(*lines: str) -> str:
    return '\n'.join(['%fused (p: f32[8]) -> f32[8] {', '  %p = f32[8]{0} parameter(0)', *lines, '}'])


def _call(path: str) -> str:
    return f'ROOT %f = f32[8]{{0}} fusion(%a), kind=kLoop, calls=%fused, {named(path)}'


def test_a_fusion_belongs_to_the_part_of_its_matrix_product():
    fused = _fusion(
        f'  %d = f32[8]{{0}} convolution(%p, %p), dim_labels=bf_io->bf, {named(PATH + "/mlp/down/dot_general")}',
        f'  ROOT %n = f32[8]{{0}} add(%d, %p), {named(PATH + "/mlp_norm/add")}',
    )
    assert _part(_call(f'{PATH}/mlp_norm/add'), fused) == 'mlp'


def test_a_fusion_without_a_product_belongs_to_the_part_of_its_result():
    fused = _fusion(
        f'  %d = f32[8]{{0}} multiply(%p, %p), {named(PATH + "/dropout/mul")}',
        f'  ROOT %n = f32[8]{{0}} add(%d, %p), {named(PATH + "/mlp_norm/add")}',
    )
    assert _part(_call(f'{PATH}/mlp_norm/add'), fused) == 'norm'


def test_casts_and_copies_are_separate_parts():
    cast = _fusion(f'  ROOT %c = bf16[8]{{0}} convert(%p), {named(PATH + "/mlp/up/convert")}')
    assert _part(_call(f'{PATH}/mlp/up/convert'), cast) == 'casts'
    moved = _fusion(f'  ROOT %c = f32[8]{{0}} transpose(%p), dimensions={{0}}, {named(PATH + "/mlp/up/transpose")}')
    assert _part(_call(f'{PATH}/mlp/up/transpose'), moved) == 'copies'


def test_values_that_a_loop_stores_belong_to_the_stacks():
    path = 'jit(step)/jvp(Bert)/encoder/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice'
    fused = _fusion(f'  ROOT %u = f32[8]{{0}} dynamic-update-slice(%p, %p, %p), {named(path)}')
    assert _part(_call(path), fused) == 'stacks'


def test_an_instruction_without_a_name_belongs_to_the_part_of_its_operand():
    bits = f'%bits = u32[8]{{0}} xor(%a, %a), {named(PATH + "/attention/dropout/xor")}'
    line = f'ROOT %b = u32[8,2]{{1,0}} broadcast(%bits), dimensions={{0}}, {CYCLES % 9}'
    assert part_of(parse(straight(bits, line)).root) == 'dropout'
