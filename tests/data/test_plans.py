"""Tests that plans on disk are written once, read again, and replaced if they are damaged."""

import numpy as np
import pytest
from data_fakes import synthetic_split

from bertjax.data import walking
from bertjax.data.pairs import PairOptions
from bertjax.data.plans import load_plans, remove_leftovers

OPTIONS = PairOptions(plans=3)


@pytest.fixture
def walked(monkeypatch) -> list[int]:
    """Returns a list that records the numbers of walked plans."""
    numbers, walk = [], walking.walk

    def record_and_walk(split, options, seq_len, seed, plan, *rest):
        numbers.append(plan)
        return walk(split, options, seq_len, seed, plan, *rest)

    monkeypatch.setattr(walking, 'walk', record_and_walk)
    return numbers


def same(first, second):
    return all(
        np.array_equal(a.chunks, b.chunks)
        and (a.one_sentence, a.next_probability) == (b.one_sentence, b.next_probability)
        for a, b in zip(first, second, strict=True)
    )


def test_plans_are_walked_once(split, tmp_path, walked):
    first = load_plans(split, OPTIONS, 64, 0, tmp_path / 'new' / 'folder')
    assert walked == [0, 1, 2]
    again = load_plans(split, OPTIONS, 64, 0, tmp_path / 'new' / 'folder')
    assert walked == [0, 1, 2]
    assert same(first, again)
    assert same(first, load_plans(split, OPTIONS, 64, 0, None))
    # The plans are memory-mapped and read-only.
    assert not again[0].chunks.flags.writeable
    assert not again[0].chunks.flags.owndata
    # A larger number of plans reuses the existing ones.
    walked.clear()
    load_plans(split, PairOptions(plans=5), 64, 0, tmp_path / 'new' / 'folder')
    assert walked == [3, 4]


def test_the_saved_plans_of_another_number_change_nothing(split, tmp_path):
    few, many = (PairOptions(balanced=True, plans=plans) for plans in (1, 4))
    load_plans(split, few, 64, 0, tmp_path)
    assert same(load_plans(split, many, 64, 0, tmp_path), load_plans(split, many, 64, 0, None))


@pytest.mark.parametrize(
    'changed',
    [
        {'seed': 1},
        {'seq_len': 65},
        {'options': PairOptions(mode='sop', plans=3)},
        {'options': PairOptions(short_probability=0.2, plans=3)},
        {'options': PairOptions(balanced=True, plans=3)},
        {'split': synthetic_split(1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_options_need_other_plans(split, tmp_path, changed):
    arguments = {'split': split, 'options': OPTIONS, 'seq_len': 64, 'seed': 0, 'cache_dir': tmp_path}
    first = load_plans(**arguments)
    other = load_plans(**arguments | changed)
    assert not same(first, other)
    assert same(other, load_plans(**arguments | changed | {'cache_dir': None}))
    assert same(first, load_plans(**arguments))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    'damage',
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-16]),
        lambda path: path.write_bytes(b''),
        lambda path: path.unlink(),
        lambda path: path.with_suffix('.json').unlink(),
        lambda path: path.with_suffix('.json').write_text('{"chunks": 3'),
        lambda path: path.with_suffix('.json').write_text('[]'),
    ],
    ids=['bit', 'truncated', 'emptied', 'gone', 'facts gone', 'truncated facts', 'foreign facts'],
)
def test_a_damaged_plan_is_walked_again(split, tmp_path, walked, damage):
    first = [plan.chunks.copy() for plan in load_plans(split, OPTIONS, 64, 0, tmp_path)]
    damage(sorted(tmp_path.glob('*-001.npy'))[0])
    walked.clear()
    fixed = load_plans(split, OPTIONS, 64, 0, tmp_path)
    assert walked == [1]
    assert all(np.array_equal(plan.chunks, chunks) for plan, chunks in zip(fixed, first, strict=True))
    walked.clear()
    load_plans(split, OPTIONS, 64, 0, tmp_path)
    assert walked == []


def test_a_plan_has_exactly_two_files(split, tmp_path):
    load_plans(split, OPTIONS, 64, 0, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name[37:] for name in names] == [f'-{plan:03d}.{end}' for plan in range(3) for end in ('json', 'npy')]


def test_plans_on_disk_keep_their_probability(split, tmp_path, walked):
    options = PairOptions(plans=2, balanced=True)
    first = load_plans(split, options, 64, 0, tmp_path)
    assert first[0].next_probability == first[1].next_probability > 0.5
    sorted(tmp_path.glob('*-001.npy'))[0].unlink()
    walked.clear()
    assert same(first, load_plans(split, options, 64, 0, tmp_path))
    assert walked == [1]


def test_leftovers_of_a_killed_process_are_removed(split, tmp_path):
    remove_leftovers(tmp_path / 'absent')
    load_plans(split, PairOptions(plans=1), 64, 0, tmp_path)
    whole = {path.name for path in tmp_path.iterdir()}
    (tmp_path / '.plan-0-000.npy.tmp-123').write_bytes(b'half')
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == whole
