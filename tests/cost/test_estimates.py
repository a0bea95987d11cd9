"""Tests the estimated time of a step."""

import pytest
from hlo_texts import CYCLES, NO_ESTIMATE, loop, named, straight

from bertjax.cost.estimate import Estimate, Rates, estimate
from bertjax.cost.hlo import parse

# 1,000 cycles a second. Instructions without cycles reach 60 % of the peak: 48 MB/s or 6 MFLOP/s.
RATES = Rates(1e3, peak_flops=10e6, hbm_bandwidth=80e6, ici_bandwidth=lambda n: 1e6 * n, network_bandwidth=2e6)
WORK = f'%work = f32[8]{{0:S(1)}} negate(%a), {named("jit(step)/jvp(Bert)/mlm/neg")}, {CYCLES % 1000}'
SUM = 'replica_groups={{0,1,2,3}}, to_apply=%add'


def _estimate(text: str, chips: int = 4) -> Estimate:
    return estimate(parse(text), RATES, chips)


def test_a_loop_takes_as_long_as_all_its_iterations():
    found = _estimate(loop())
    assert found.seconds('compiler') == pytest.approx(1.2) and not found.unknown_loops
    assert found.parts()[0] == ('mlp', pytest.approx(1.2))


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    found = _estimate(loop(bound='custom-call(%c)'))
    assert found.seconds('compiler') == pytest.approx(0.1) and found.unknown_loops == ['while.1']


def _counted(name: str, times: int, line: str) -> str:
    """Returns condition and body of a loop that executes `line` `times` times; `line` computes %y.NAME from %x.NAME."""
    return f"""%condition.{name} (c.{name}: (s32[], f32[8])) -> pred[] {{
  %c.{name} = (s32[], f32[8]{{0}}) parameter(0)
  %i.{name} = s32[] get-tuple-element(%c.{name}), index=0
  %bound.{name} = s32[] constant({times})
  ROOT %on.{name} = pred[] compare(%i.{name}, %bound.{name}), direction=LT
}}

%body.{name} (b.{name}: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %b.{name} = (s32[], f32[8]{{0}}) parameter(0)
  %j.{name} = s32[] get-tuple-element(%b.{name}), index=0
  %x.{name} = f32[8]{{0}} get-tuple-element(%b.{name}), index=1
  %one.{name} = s32[] constant(1)
  %next.{name} = s32[] add(%j.{name}, %one.{name})
  {line}
  ROOT %both.{name} = (s32[], f32[8]{{0}}) tuple(%next.{name}, %y.{name})
}}
"""


def test_nested_loops_multiply():
    inner = _counted('in', 3, f'%y.in = f32[8]{{0}} negate(%x.in), {CYCLES % 100}')
    lines = (
        '%zero.out = s32[] constant(0)',
        '%begin.out = (s32[], f32[8]{0}) tuple(%zero.out, %x.out)',
        '%w.out = (s32[], f32[8]{0}) while(%begin.out), condition=%condition.in, body=%body.in',
        '%y.out = f32[8]{0} get-tuple-element(%w.out), index=1',
    )
    computations = inner + _counted('out', 5, '\n  '.join(lines))
    entry = (
        '%zero = s32[] constant(0)',
        '%begin = (s32[], f32[8]{0}) tuple(%zero, %a)',
        'ROOT %w = (s32[], f32[8]{0}) while(%begin), condition=%condition.out, body=%body.out',
    )
    assert _estimate(straight(*entry, computations=computations)).seconds('compiler') == pytest.approx(5 * 3 * 0.1)


def test_a_conditional_takes_as_long_as_its_longest_branch():
    branches = '\n\n'.join(
        f'%{name} (p.{name}: f32[8]) -> f32[8] {{\n  %p.{name} = f32[8]{{0}} parameter(0)\n'
        f'  ROOT %n.{name} = f32[8]{{0}} negate(%p.{name}), {CYCLES % cycles}\n}}'
        for name, cycles in (('short', 10), ('long', 500))
    )
    line = 'ROOT %r = f32[8]{0} conditional(%a, %a, %a), branch_computations={%short, %long}'
    assert _estimate(straight(line, computations=branches)).seconds() == pytest.approx(0.5)


def test_a_program_without_cycles_has_no_estimate():
    found = _estimate(straight('ROOT %r = f32[2000000]{0} negate(%a)'))
    assert found.step_s is None and found.modelled_share is None


def test_an_instruction_without_an_estimate_is_modeled_by_its_bytes():
    found = _estimate(straight(WORK, f'ROOT %r = f32[2000000]{{0}} negate(%a), {NO_ESTIMATE}'))
    assert found.seconds('other') == pytest.approx(16e6 / 80e6 / 0.6)
    assert found.modelled_share == pytest.approx(found.seconds('other') / (1 + found.seconds('other')))


@pytest.mark.parametrize(
    ('config', 'seconds', 'silent'),
    [
        ('"cost_estimate":{"flops":"60000000","bytes_accessed":"8"}', 10.0, False),
        ('"cost_estimate":{"flops":"6","bytes_accessed":"48000000"}', 1.0, False),
        ('"other":{}', 16e6 / 80e6 / 0.6, True),  # Bytes of operand and result.
    ],
)
def test_the_time_of_a_kernel_follows_from_its_cost_estimate(config: str, seconds: float, silent: bool):
    target = f'custom_call_target="tpu_custom_call", backend_config={{{config}}}'
    found = _estimate(straight(WORK, f'ROOT %k = f32[2000000]{{0}} custom-call(%a), {target}'))
    assert found.seconds('kernel') == pytest.approx(seconds)
    assert found.silent_kernels == (['k'] if silent else [])


def test_annotations_of_the_compiler_take_no_time():
    found = _estimate(straight(WORK, 'ROOT %k = f32[2000000]{0} custom-call(%a), custom_call_target="ConcatBitcast"'))
    assert found.seconds() == pytest.approx(1.0)


def test_a_synchronous_collective_is_fully_exposed():
    """In an all-reduce of 8 MB over 4 chips, each chip sends 2 · 3/4 of 8 MB at 4 MB/s."""
    found = _estimate(straight(WORK, f'ROOT %r = f32[2000000]{{0}} all-reduce(%a), channel_id=1, {SUM}'))
    (sent,) = found.collectives
    assert (sent.seconds, sent.exposed, sent.first == sent.last) == (3.0, 3.0, True)
    assert found.step_s == pytest.approx(4.0) and found.modelled_share == pytest.approx(0.75)
    assert sent.kind == 'all-reduce' and sent.sent == 12_000_000


def test_work_between_start_and_end_hides_a_collective():
    start = f'%s = f32[2000000]{{0}} all-reduce-start(%a), channel_id=1, {SUM}'
    done = 'ROOT %d = f32[2000000]{0} all-reduce-done(%s)'
    assert _estimate(straight(start, WORK, done)).seconds('exposed') == pytest.approx(2.0)
    long = WORK.replace('"1000"', '"9000"')
    found = _estimate(straight(start, long, done))
    assert found.seconds('exposed') == 0 and found.step_s == pytest.approx(9.0) and found.collectives[0].last == 'd'


def test_two_collectives_share_the_links():
    starts = [f'%s{i} = f32[2000000]{{0}} all-reduce-start(%a), channel_id={i}, {SUM}' for i in (1, 2)]
    ends = ['%d1 = f32[2000000]{0} all-reduce-done(%s1)', 'ROOT %d2 = f32[2000000]{0} all-reduce-done(%s2)']
    assert _estimate(straight(*starts, WORK, *ends)).seconds('exposed') == pytest.approx(3.0 + 3.0 - 1.0)


def test_transfers_between_slices_use_the_network():
    """A chip sends to two other slices over the network while the links carry another collective."""
    note = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1_0",'
        '_xla_megascale_target="{1,3}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    reduced = f'%r = f32[2000000]{{0}} all-reduce(%a), channel_id=3, {SUM}'
    ends = f'%t = token[] after-all()\n  %s = (f32[2000000]{{0}}, u32[], token[]) send(%a, %t), channel_id=2, {note}'
    taken = f'%v = (f32[2000000]{{0}}, u32[], token[]) recv(%t), channel_id=1, {note}'
    done = 'ROOT %d = (f32[2000000]{0}, token[]) recv-done(%v), channel_id=1, is_host_transfer=true'
    found = _estimate(straight(ends, taken, reduced, WORK, done))
    inside, between = found.collectives
    assert (between.chips, between.sent, between.last) == (3, 8e6 * 4 / 3, 'd')
    assert (inside.seconds, inside.exposed) == (3.0, 3.0)
    assert between.seconds == pytest.approx(16 / 3) and between.exposed == pytest.approx(16 / 3 - 3.0 - 1.0)
    assert found.step_s == pytest.approx(16 / 3) and not found.seconds('other')


def test_a_gather_in_several_fusions_counts_once():
    """libtpu splits a gather into fusions on one channel: one starts it, one also does other work, one ends it."""
    parts = '\n\n'.join(
        f'%part{i} (q{i}: f32[2000000]) -> f32[8000000] {{\n  %q{i} = f32[2000000]{{0}} parameter(0)\n'
        f'  ROOT %g{i} = f32[8000000]{{0}} all-gather(%q{i}), channel_id=9, dimensions={{0}}, '
        "replica_groups=mesh['x'=4,'y'=4] {'y'}\n}"
        for i in range(3)
    )
    calls = [f'%f{i} = f32[8000000]{{0}} fusion(%a), kind=kCustom, calls=%part{i}' for i in range(3)]
    calls[1] += f', {CYCLES % 2000}'
    found = _estimate(straight(calls[0], calls[1], 'ROOT ' + calls[2], computations=parts), chips=16)
    (sent,) = found.collectives
    assert (sent.chips, sent.sent, sent.seconds) == (4, 24e6, 6.0)
    assert found.step_s == pytest.approx(6.0) and found.seconds('compiler') == pytest.approx(2.0)


def test_separate_gathers_on_one_channel_are_distinguished():
    """All gathers in `shard_map` have the same channel."""
    gather = 'all-gather(%a), channel_id=1, dimensions={0}, replica_groups=[2,4]<=[8]'
    found = _estimate(straight(f'%x = f32[8000000]{{0}} {gather}', f'ROOT %y = f32[8000000]{{0}} {gather}'), chips=8)
    assert [each.seconds for each in found.collectives] == [6.0, 6.0]


def test_a_gather_across_a_loop_counts_once():
    """Of a chain of fusions, only the one that starts the gather counts."""
    note = 'custom_call_target="AsyncCollectiveStart"'
    roots = (f'ROOT %c = f32[8000000]{{0}} custom-call(%g0), {note}', 'ROOT %n = f32[8000000]{0} negate(%g1)')
    parts = '\n\n'.join(
        f'%part{i} (q{i}: f32[2000000]) -> f32[8000000] {{\n  %q{i} = f32[2000000]{{0}} parameter(0)\n'
        f'  %g{i} = f32[8000000]{{0}} all-gather(%q{i}), channel_id=1, dimensions={{0}}, replica_groups=[2,4]<=[8], '
        f'frontend_attributes={{chain_id="3"}}\n  {root}\n}}'
        for i, root in enumerate(roots)
    )
    begins, carries = (f'%f{i} = f32[8000000]{{0}} fusion(%a), kind=kCustom, calls=%part{i}' for i in range(2))
    (sent,) = _estimate(straight(begins, 'ROOT ' + carries, computations=parts), chips=8).collectives
    assert sent.seconds == 6.0 and sent.first != sent.last
    assert not _estimate(straight('ROOT ' + carries, computations=parts), chips=8).collectives


def test_an_all_reduce_followed_by_a_slice_is_a_reduce_scatter():
    part = """%scatter (q: f32[2000000]) -> f32[500000] {
  %q = f32[2000000]{0} parameter(0)
  %r = f32[2000000]{0} all-reduce(%q), channel_id=4, replica_groups=[2,4]<=[8], to_apply=%add
  %zero = s32[] constant(0)
  ROOT %slice = f32[500000]{0} dynamic-slice(%r, %zero), dynamic_slice_sizes={500000}
}"""
    line = 'ROOT %f = f32[500000]{0} fusion(%a), kind=kCustom, calls=%scatter'
    (sent,) = _estimate(straight(WORK, line, computations=part), chips=8).collectives
    assert (sent.kind, sent.chips, sent.sent) == ('reduce-scatter', 4, 6e6)


@pytest.mark.parametrize(
    ('groups', 'chips'),
    [
        ('{{0,1},{2,3}}', 2),
        ('[2,4]<=[8]', 4),
        ("mesh['a'=4,'b'=2] {'a'}, dimensions={0}", 4),
        ("mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0)) {'a'}, dimensions={0}", 2),
        ("mesh['a'=4,'b'=2], dimensions={0}", 8),
        ('{}', 8),
    ],
)
def test_the_number_of_chips_of_a_group_is_parsed(groups: str, chips: int):
    line = f'ROOT %y = f32[8]{{0}} all-reduce(%a), channel_id=1, replica_groups={groups}, to_apply=%add'
    (sent,) = _estimate(straight(line), chips=8).collectives
    assert sent.chips == chips
