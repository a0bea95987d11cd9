"""Tests parsing the text of compiled programs."""

import pytest
from hlo_texts import CYCLES, loop, straight

from bertjax.cost.hlo import parse, shape_bytes, trip_count


def test_the_parts_of_an_instruction_are_parsed():
    line = (
        '%sum.1 = (f32[2,3]{1,0:T(8,128)}, /*index=1*/bf16[4]{0:T(8)(2,1)S(1)}) all-reduce(%a, %b.2), channel_id=3, '
        'to_apply=%add.7, metadata={op_name="jit(f)/a(b)/c" stack_frame_id=4}, ' + CYCLES % 17
    )
    entry = parse(straight(line, computations='%add.7 (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}'))
    one = entry.instructions['sum.1']
    assert (one.opcode, one.op_name, one.cycles, one.is_root) == ('all-reduce', 'jit(f)/a(b)/c', 17, False)
    assert [x.name for x in one.inputs] == ['a'] and one.operands == '%a, %b.2'
    assert one.called('to_apply') == [entry.module['add.7']] and one.called('calls', 'body') == []
    assert shape_bytes(one.shape) == 24 + 8 and shape_bytes(one.shape, hbm_only=True) == 24


def test_the_largest_int64_means_no_estimate():
    entry = parse(straight(f'%x = f32[2] negate(%a), {CYCLES % (2**63 - 1)}', '%y = f32[2] negate(%x)'))
    assert [one.cycles for one in entry.instructions.values()] == [None, None, None]


def test_text_that_is_not_hlo_is_refused():
    with pytest.raises(ValueError, match='ENTRY'):
        parse('define void @main() {\n  ret void\n}\n')


@pytest.mark.parametrize(
    ('shape', 'size'),
    [
        ('f32[64,100]{1,0:T(8,128)}', 25600),
        ('bf16[3,5]{0,1:T(8,128)(2,1)}', 30),
        ('pred[10]{0:T(1024)}', 10),
        ('s32[]', 4),
        ('s4[16]{0}', 8),
        ('token[]', 0),
    ],
)
def test_the_bytes_of_a_shape_are_counted(shape: str, size: int):
    assert shape_bytes(shape) == shape_bytes(shape, hbm_only=True) == size
    assert shape_bytes(f'({shape}, ({shape}))') == 2 * size


def test_only_memory_space_0_is_hbm():
    assert shape_bytes('f32[4]{0:T(128)S(1)}', hbm_only=True) == 0
    assert shape_bytes('f32[4]{0:T(128)S(0)}', hbm_only=True) == 16


@pytest.mark.parametrize(
    ('changes', 'times'),
    [
        ({}, 12),
        ({'start': 'constant(2)', 'step': 'constant(3)'}, 4),
        ({'start': 'constant(2)', 'step': 'constant(3)', 'direction': 'LE'}, 4),
        ({'start': 'constant(11)', 'bound': 'constant(0)', 'step': 'constant(-1)', 'direction': 'GE'}, 12),
        ({'start': 'constant(11)', 'bound': 'constant(0)', 'step': 'constant(-1)', 'direction': 'GT'}, 11),
        ({'direction': 'NE'}, 12),
        ({'start': 'constant(20)'}, 0),
        ({'bound': 'custom-call(%c)'}, None),  # The bound is computed.
        ({'step': 'get-tuple-element(%b), index=0'}, None),  # The counter doubles.
        ({'start': 'custom-call(%a)'}, None),
    ],
)
def test_the_trip_count_of_a_loop(changes: dict, times: int | None):
    assert trip_count(parse(loop(**changes)).instructions['while.1']) == times


def test_a_trip_count_in_the_text_takes_precedence():
    text = loop(bound='custom-call(%c)')
    entry = parse(text.replace('body=%body', 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'))
    assert trip_count(entry.instructions['while.1']) == 7


def test_the_trip_count_is_found_inside_fusions():
    inner = """%compared (l: s32[], r: s32[]) -> pred[] {
  %l = s32[] parameter(0)
  %r = s32[] parameter(1)
  ROOT %c.1 = pred[] compare(%l, %r), direction=LT
}

%stepped (l2: s32[], r2: s32[]) -> s32[] {
  %l2 = s32[] parameter(0)
  %r2 = s32[] parameter(1)
  ROOT %s.1 = s32[] add(%l2, %r2)
}
"""
    text = loop().replace('compare(%i, %bound), direction=LT', 'fusion(%i, %bound), kind=kLoop, calls=%compared')
    text = text.replace('add(%j, %step), backend_config={}', 'fusion(%j, %step), kind=kLoop, calls=%stepped')
    entry = parse(text.replace('%double (p', inner + '\n%double (p'))
    assert trip_count(entry.instructions['while.1']) == 12
