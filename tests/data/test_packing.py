"""Tests that packed rows contain every example of a cycle once."""

import json

import numpy as np
import pytest
from data_fakes import FakeVocabulary, MemorySplit, synthetic_split

from bertjax.data import packing
from bertjax.data.batch import max_examples, pretraining_batch_spec
from bertjax.data.masking import UNITS, MaskOptions, prediction_budgets
from bertjax.data.mixture import MixedExamples
from bertjax.data.packing import PackedExamples, best_fit, load_packings
from bertjax.data.pairs import MODES, PairOptions
from bertjax.data.pretraining import PretrainingExamples

S, P = 128, 20
FAR = 10**12


def packed_of(split, vocabulary, *, cache_dir=None, masking=None, seq_len=S, most=P, plans=2, seed=0, **pairs):
    examples = PretrainingExamples(
        split,
        vocabulary,
        seq_len=seq_len,
        max_predictions=most,
        pairs=PairOptions(plans=plans, **pairs),
        masking=masking or MaskOptions(),
        seed=seed,
        phase=0,
        cache_dir=cache_dir,
    )
    return examples, PackedExamples(examples)


@pytest.fixture(scope='module')
def small() -> MemorySplit:
    """Returns a split of short documents, whose unpacked rows are mostly padding."""
    return synthetic_split(documents=150, sentences=3)


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def plain_best_fit(sizes, capacity):
    """Returns the rows of best-fit decreasing as lists of sizes, with the textbook algorithm."""
    rows = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= capacity]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return rows


@pytest.mark.parametrize(
    'sizes', [[1], [64] * 5, [40, 30, 24, 10, 10], *np.random.default_rng(0).integers(1, 65, (8, 90))]
)
def test_best_fit_equals_the_textbook_algorithm(sizes):
    order, row = best_fit(np.asarray(sizes), 64)
    ends = np.cumsum(np.bincount(row))
    assert sorted(order.tolist()) == list(range(len(sizes)))
    rows = [np.asarray(sizes)[row] for row in np.split(order, ends[:-1])]
    assert ends[-1] == len(sizes) and all(len(row) for row in rows)
    # Ties between rows of equal size are broken arbitrarily, so only the totals of rows are compared.
    assert sorted(map(sum, rows)) == sorted(map(sum, plain_best_fit(list(sizes), 64)))


@pytest.mark.parametrize('mode', MODES)
def test_a_cycle_has_every_example_once_in_the_order_of_plans(small, vocabulary, monkeypatch, mode):
    monkeypatch.setattr(packing, 'BLOCK', 100)  # There are several blocks, and the last one is not full.
    examples, packed = packed_of(small, vocabulary, mode=mode)
    length, orders = packed.cycle_length, []
    for cycle in (0, 1, 1000):
        which, numbers, cycles = packed.locate(np.arange(length) + cycle * length)
        assert sorted(numbers.tolist()) == list(range(examples.cycle_length))
        assert np.unique(which).tolist() == list(range(length)) and (cycles == cycle).all()
        plan = np.searchsorted(np.cumsum(examples.plan_lengths), numbers, 'right')
        assert (np.diff(plan) >= 0).all()
        orders.append(numbers.tolist())
    assert orders[0] != orders[1] != orders[2]
    assert all(sorted(numbers) != numbers for numbers in orders)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('unit', UNITS)
def test_a_row_contains_the_examples_of_unpacked_rows(small, vocabulary, mode, unit):
    examples, packed = packed_of(small, vocabulary, mode=mode, masking=MaskOptions(unit=unit))
    which, numbers, _ = packed.locate(np.arange(60))
    rows, alone = packed.batch(np.arange(60)), examples.batch(numbers)
    if mode == 'sentences':  # Some examples are a single word that is longer than the budget.
        alone = examples.batch(numbers, mask_cycle=np.zeros_like(numbers))
    assert {name: (x.shape, x.dtype) for name, x in rows.items()} == pretraining_batch_spec(60, S, P, packed=True)
    assert len(numbers) > 60 or mode == 'full_sentences' or (mode == 'full_rows' and len(numbers) == 60)
    seen = np.zeros(60, int)
    for i, row in enumerate(which.tolist()):
        ordinal, length = seen[row], int(alone['attention_mask'][i].sum())
        start = rows['cls_positions'][row, ordinal]
        columns = slice(start, start + length)
        assert (rows['sequence_ids'][row] == ordinal + 1).nonzero()[0].tolist() == list(range(start, start + length))
        assert rows['position_ids'][row, columns].tolist() == list(range(length))
        for name in ('input_ids', 'segment_ids', 'attention_mask'):
            assert (rows[name][row, columns] == alone[name][i, :length]).all(), name
        used = (rows['masked_weights'][row] > 0) & (rows['masked_positions'][row] >= start)
        used &= rows['masked_positions'][row] < start + length
        expected = alone['masked_weights'][i] > 0
        assert (rows['masked_positions'][row, used] - start == alone['masked_positions'][i, expected]).all()
        assert (rows['masked_ids'][row, used] == alone['masked_ids'][i, expected]).all()
        for name in ('nsp_labels', 'nsp_weights'):
            assert rows[name][row, ordinal] == alone[name][i]
        seen[row] += 1
    # Everything else is padding.
    padding = rows['sequence_ids'] == 0
    assert (rows['input_ids'][padding] == vocabulary.pad_id).all()
    assert not any(rows[name][padding].any() for name in ('segment_ids', 'attention_mask', 'position_ids'))
    assert rows['masked_weights'].sum() == alone['masked_weights'].sum()
    assert (np.diff(rows['masked_positions'], axis=1) > 0)[rows['masked_weights'][:, 1:] > 0].all()
    unused = np.arange(max_examples(S)) >= seen[:, None]
    assert not any(rows[name][unused].any() for name in ('cls_positions', 'nsp_labels', 'nsp_weights'))


@pytest.mark.parametrize('static', [False, True])
def test_a_row_is_the_same_in_any_batch_and_from_disk(small, vocabulary, tmp_path, static):
    masking = MaskOptions(static=static)
    _, packed = packed_of(small, vocabulary, masking=masking)
    m = np.concatenate([np.arange(30), FAR + np.arange(10), [2**40]])
    together = packed.batch(m)
    for some in (np.arange(41)[::-1], np.arange(0, 41, 7), np.array([40]), np.array([3, 3, 35])):
        assert equal(packed.batch(m[some]), {name: x[some] for name, x in together.items()})
    for _ in range(2):
        _, other = packed_of(small, vocabulary, masking=masking, cache_dir=tmp_path)
        assert equal(other.batch(m), together)


def test_a_large_batch_equals_its_parts(small, vocabulary, monkeypatch):
    _, packed = packed_of(small, vocabulary)
    n, rates = np.arange(50), np.linspace(0.05, 0.15, 50)
    whole = packed.batch(n, rates)
    monkeypatch.setattr(packing, '_PART_POSITIONS', 16 * S)
    assert equal(packed.batch(n, rates), whole)


def test_later_cycles_have_the_same_pairs_with_other_masks(small, vocabulary):
    _, packed = packed_of(small, vocabulary)
    length = packed.cycle_length
    first, second = (packed.batch(cycle * length + np.arange(length)) for cycle in (0, 1))
    located = [packed.locate(cycle * length + np.arange(length)) for cycle in (0, 1)]
    numbers_of_rows = [dict(zip(which.tolist(), numbers.tolist(), strict=True)) for which, numbers, _ in located]
    second_rows = {number: row for row, number in numbers_of_rows[1].items()}
    for row, number in list(numbers_of_rows[0].items())[:40]:
        other = second_rows[number]
        assert (first['sequence_ids'][row] == second['sequence_ids'][other]).all()
        assert (first['nsp_labels'][row] == second['nsp_labels'][other]).all()
        assert (first['masked_positions'][row] != second['masked_positions'][other]).any()


def test_packings_are_cached_and_rebuilt_if_they_are_damaged(small, vocabulary, tmp_path, monkeypatch):
    calls, pack_plan = [], packing.pack_plan
    monkeypatch.setattr(packing, 'pack_plan', lambda *arguments: calls.append(1) or pack_plan(*arguments))
    examples, _ = packed_of(small, vocabulary, cache_dir=tmp_path)
    first = [(np.array(packing.members), np.array(packing.starts), packing.real) for packing in load_packings(examples)]
    again = load_packings(examples)
    assert len(calls) == 2 and not again[0].members.flags.writeable and not again[0].members.flags.owndata
    for (members, starts, real), other in zip(first, again, strict=True):
        assert (members == other.members).all() and (starts == other.starts).all() and real == other.real
    damaged = sorted(tmp_path.glob('packing-*.npy'))[1]
    damaged.write_bytes(damaged.read_bytes()[:-8] + b'\xff' * 8)
    assert (load_packings(examples)[1].members == first[1][0]).all() and len(calls) == 3
    for changed in ({'seed': 1}, {'most': P + 1}, {'masking': MaskOptions(rate=0.2)}, {'short_probability': 0.2}):
        load_packings(packed_of(small, vocabulary, cache_dir=tmp_path, **changed)[0])
    assert len(calls) == 11


def test_the_number_of_examples_and_predictions_of_a_row_is_bounded(vocabulary):
    """A row of S positions has at most `max_examples(S)` examples, however short they are."""
    tiny = MemorySplit([[np.arange(10, 12)] * 2 for _ in range(300)])
    _, packed = packed_of(tiny, vocabulary, mode='sop')
    rows = packed.batch(np.arange(packed.cycle_length))
    assert rows['sequence_ids'].max() == max_examples(S) == 8
    examples, packed = packed_of(synthetic_split(documents=60, sentences=3), vocabulary, most=4)
    which, numbers, _ = packed.locate(np.arange(packed.cycle_length))
    needed = examples.batch(numbers)['masked_weights'].sum(1)
    assert np.bincount(which, needed).max() == 4
    assert packed.batch(np.arange(packed.cycle_length))['masked_weights'].sum() == needed.sum()


def test_words_longer_than_the_budget_stay_within_it():
    """Without packing, such a word is masked completely. A packed row has predictions only for the counted budget."""
    vocabulary = FakeVocabulary()
    long_words = MemorySplit([[np.array([10, *[12] * 11])] * 2 for _ in range(300)])  # Words of twelve pieces.
    examples, packed = packed_of(long_words, vocabulary, mode='sop', masking=MaskOptions(unit='word'))
    assert (examples.batch(np.arange(10))['masked_weights'].sum(1) >= 12).all()
    rows = packed.batch(np.arange(packed.cycle_length))
    assert rows['sequence_ids'].max() > 2
    maskable = examples.lengths(np.arange(examples.cycle_length))[1]
    assert rows['masked_weights'].sum() == prediction_budgets(maskable, MaskOptions(), P).sum()


def test_packed_rows_can_be_mixed(small, vocabulary):
    parts = [packed_of(small, vocabulary)[1], packed_of(synthetic_split(1, 100, 3), vocabulary)[1]]
    mixed = MixedExamples(parts, [3, 1], seed=0, phase=0)
    component, numbers = mixed.locate(np.arange(64))
    for c in (0, 1):
        chosen = component == c
        rows = mixed.batch(np.arange(64))
        assert equal({name: x[chosen] for name, x in rows.items()}, parts[c].batch(numbers[chosen]))
    assert [part['examples_per_row'] > 1.2 for part in mixed.report['components']] == [True, True]


def test_the_report_equals_counts_of_the_rows(small, vocabulary):
    examples, packed = packed_of(small, vocabulary)
    rows, report = packed.batch(np.arange(packed.cycle_length)), packed.report
    assert json.dumps(report)
    assert report['real_positions'] == pytest.approx(rows['attention_mask'].mean())
    assert report['examples_per_row'] == pytest.approx(rows['sequence_ids'].max(1).mean())
    assert report['unpacked_real_positions'] == examples.report['real_positions'] < report['real_positions'] - 0.2


def test_rows_of_wikipedia_are_nearly_full(wikipedia, english):
    _, packed = packed_of(wikipedia, english, seq_len=512, most=80, plans=1)
    assert packed.report['real_positions'] > 0.97
    assert packed.report['unpacked_real_positions'] < 0.75
