"""Tests that example n depends on (seed, phase, n) alone, and that a cycle has every slot of every plan once."""

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
from data_fakes import MemorySplit, synthetic_split
from example_source import documents_of, source_of

from bertjax.data.masking import UNITS, MaskOptions
from bertjax.data.pairs import MODES, PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.errors import UserError

FAR = 10**9


def examples_of(split, vocabulary, *, seq_len=64, most=10, seed=0, phase=0, cache_dir=None, masking=None, **pairs):
    return PretrainingExamples(
        split,
        vocabulary,
        seq_len=seq_len,
        max_predictions=most,
        pairs=PairOptions(**pairs),
        masking=masking or MaskOptions(),
        seed=seed,
        phase=phase,
        cache_dir=cache_dir,
    )


@pytest.fixture(scope='module')
def small() -> MemorySplit:
    return synthetic_split(documents=40, sentences=12)


def equal(first, second):
    return all(np.array_equal(first[name], second[name]) for name in first)


def unmasked(batch):
    """Returns the ids before masking, [B, S]."""
    ids = batch['input_ids'].copy()
    row, slot = np.nonzero(batch['masked_weights'])
    ids[row, batch['masked_positions'][row, slot]] = batch['masked_ids'][row, slot]
    return ids


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('unit', UNITS)
@pytest.mark.parametrize('static', [False, True])
def test_an_example_is_the_same_in_any_batch(small, vocabulary, mode, unit, static):
    masking = MaskOptions(unit=unit, static=static)
    examples = examples_of(small, vocabulary, mode=mode, masking=masking)
    n = np.concatenate([np.arange(40), np.arange(FAR, FAR + 10), [2**40]])
    together = examples.batch(n)
    for some in (np.arange(51)[::-1], np.arange(0, 51, 7), np.array([50]), np.array([3, 3, 45])):
        alone = examples.batch(n[some])
        assert equal(alone, {name: x[some] for name, x in together.items()})
    # Another object, as on another host, gives the same examples.
    assert equal(examples_of(small, vocabulary, mode=mode, masking=masking).batch(n), together)


@pytest.mark.parametrize('unit', UNITS)
def test_special_tokens_in_the_text_are_not_predicted(vocabulary, unit):
    """A text may contain their names. As in google-research/bert, [UNK] is predicted."""
    split = MemorySplit([[[20, 4, 21, 22, 0, 23, 2, 1, 3, 24, 7]] * 6] * 8)
    batch = examples_of(split, vocabulary, most=40, masking=MaskOptions(rate=0.5, unit=unit)).batch(np.arange(50))
    assert {*batch['masked_ids'][batch['masked_weights'] > 0].tolist()} == {vocabulary.unk_id, 7, *range(20, 25)}


def test_rows_of_one_sentence(small, vocabulary, tmp_path):
    """Every pass has each sentence once as [CLS] sentence [SEP]."""
    examples = examples_of(small, vocabulary, mode='sentences', plans=3, seq_len=256, cache_dir=tmp_path)
    assert examples.plan_lengths == [small.num_sentences] * 3 and len(list(tmp_path.glob('plan-*.npy'))) == 1
    assert examples.report['plans'] == 1 and examples.report['is_next'] is None
    bounds = list(itertools.pairwise(small.sentence_offsets.tolist()))
    sentences = sorted(small.tokens(first, stop - first).tolist() for first, stop in bounds)
    lengths = np.array(list(map(len, sentences)))
    shares = []
    for epoch in range(2):
        batch = examples.batch(epoch * small.num_sentences + np.arange(small.num_sentences))
        rows = [ids[real > 0].tolist() for ids, real in zip(unmasked(batch), batch['attention_mask'], strict=True)]
        assert all(row[0] == vocabulary.cls_id and row[-1] == vocabulary.sep_id for row in rows)
        assert sorted(row[1:-1] for row in rows) == sentences
        assert not batch['segment_ids'].any() and not batch['nsp_weights'].any()
        shares.append(batch['masked_weights'].sum() / lengths.sum())
    expected = np.clip(np.rint(lengths * 0.15), 1, 10).sum() / lengths.sum()
    assert shares == pytest.approx([expected] * 2)
    assert examples.report['real_positions'] == pytest.approx((lengths.mean() + 2) / 256)


@pytest.mark.parametrize('changed', [{'seed': 1}, {'phase': 1}])
def test_seed_and_phase_give_other_examples(small, vocabulary, changed):
    n = np.arange(64)
    first = examples_of(small, vocabulary).batch(n)
    other = examples_of(small, vocabulary, **changed).batch(n)
    assert not any(np.array_equal(first['input_ids'][i], other['input_ids'][i]) for i in range(64))


def test_plans_on_disk_give_the_same_examples(small, vocabulary, tmp_path):
    n = np.arange(100)
    first = examples_of(small, vocabulary).batch(n)
    for _ in range(2):
        assert equal(examples_of(small, vocabulary, cache_dir=tmp_path).batch(n), first)


@pytest.mark.parametrize('mode', MODES)
def test_a_cycle_has_every_slot_of_every_plan_once(small, vocabulary, mode):
    examples = examples_of(small, vocabulary, mode=mode, plans=3, seq_len=32)
    length = examples.cycle_length
    orders = []
    for cycle in (0, 1, 1000):
        slots = examples._locate(cycle * length + np.arange(length))
        assert (slots.cycle == cycle).all()
        order = list(zip(slots.plan.tolist(), slots.slot.tolist(), strict=True))
        assert order != sorted(order)
        assert (np.diff(slots.plan) >= 0).all()
        expected = [(plan, slot) for plan, count in enumerate(np.bincount(slots.plan)) for slot in range(count)]
        assert sorted(order) == expected
        orders.append(order)
    assert orders[0] != orders[1] != orders[2]


def test_a_far_example_costs_what_the_first_costs(small, vocabulary):
    # A walk over all examples before this number would never end.
    batch = examples_of(small, vocabulary).batch(np.arange(2**55, 2**55 + 8))
    assert (batch['masked_weights'].sum(1) >= 1).all()


@pytest.mark.parametrize('mode', MODES)
def test_rows_contain_the_text_of_their_source(small, vocabulary, mode):
    examples = examples_of(small, vocabulary, mode=mode)
    batch = examples.batch(np.arange(FAR, FAR + 200))
    ids = unmasked(batch)
    paired = 0
    for i in range(200):
        source = source_of(examples, FAR + i)
        row = ids[i][batch['attention_mask'][i] == 1].tolist()
        a, b = (small.tokens(*part).tolist() for part in (source.a, source.b))
        if mode in ('nsp', 'sop'):
            tail = [*b, vocabulary.sep_id] if b else []
            assert row == [vocabulary.cls_id, *a, vocabulary.sep_id, *tail]
            assert batch['segment_ids'][i, : len(row)].tolist() == [0] * (len(a) + 2) + [1] * len(tail)
        else:
            text = [token for token in row if token not in (vocabulary.cls_id, vocabulary.sep_id)]
            assert text == a
            assert row.count(vocabulary.sep_id) == source.b_document - source.a_document + 1
        assert batch['nsp_labels'][i] == source.label
        assert batch['nsp_weights'][i] == source.paired
        for drawn, truncated in ((source.a_drawn, source.a), (source.b_drawn, source.b)):
            assert drawn[0] <= truncated[0] and truncated[0] + truncated[1] <= drawn[0] + drawn[1]
        paired += source.paired
    assert {'nsp': paired == 200, 'sop': 0 < paired < 200}.get(mode, paired == 0)
    assert not (ids * (1 - batch['attention_mask'])).any()


def test_a_random_b_is_never_from_the_document_of_a(small, vocabulary):
    examples = examples_of(small, vocabulary)
    drawn = examples._draw(examples._locate(np.arange(examples.cycle_length)))
    a_document, b_document = documents_of(small, drawn.a_start), documents_of(small, drawn.b_start)
    assert np.array_equal(a_document != b_document, drawn.labels == 1)


def test_only_dynamic_masks_differ_between_cycles(small, vocabulary):
    for static in (False, True):
        examples = examples_of(small, vocabulary, plans=2, masking=MaskOptions(static=static))
        first, second = {}, {}
        for cycle, rows in ((0, first), (1, second)):
            numbers = cycle * examples.cycle_length + np.arange(examples.cycle_length)
            batch = examples.batch(numbers)
            slots = examples._locate(numbers)
            for i, slot in enumerate(zip(slots.plan.tolist(), slots.slot.tolist(), strict=True)):
                rows[slot] = tuple(x[i].tobytes() for x in batch.values())
        assert first.keys() == second.keys()
        same = sum(first[slot] == second[slot] for slot in first)
        assert same == (len(first) if static else 0)


def test_the_number_of_plans_is_the_dupe_factor(small, vocabulary):
    # With static masks, a chunk has as many different maskings as there are plans.
    options = {'masking': MaskOptions(static=True), 'mode': 'sop', 'short_probability': 0.0}
    lengths = [examples_of(small, vocabulary, plans=plans, **options).cycle_length for plans in (1, 2, 5)]
    assert lengths == [lengths[0], 2 * lengths[0], 5 * lengths[0]]
    examples = examples_of(small, vocabulary, plans=5, **options)
    numbers = np.arange(2 * examples.cycle_length)
    drawn = examples._draw(examples._locate(numbers))
    maskings: dict[int, set[bytes]] = {}
    for start, ids in zip(np.minimum(drawn.a_start, drawn.b_start), examples.batch(numbers)['input_ids'], strict=True):
        maskings.setdefault(int(start), set()).add(ids.tobytes())
    assert max(map(len, maskings.values())) == 5


def test_held_out_examples_have_the_same_masks_in_every_process(small, vocabulary):
    # Evaluation makes examples 0, 1, 2, ... from a new object. Another process must make the same bytes.
    program = (
        'import sys, hashlib, numpy as np\n'
        f'sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})\n'
        'from test_pretraining_examples import examples_of\n'
        'from data_fakes import FakeVocabulary, synthetic_split\n'
        'batch = examples_of(synthetic_split(documents=40, sentences=12), FakeVocabulary()).batch(np.arange(200))\n'
        'print(hashlib.sha256(b"".join(x.tobytes() for x in batch.values())).hexdigest())\n'
    )
    batch = examples_of(small, vocabulary).batch(np.arange(200))
    digest = hashlib.sha256(b''.join(x.tobytes() for x in batch.values())).hexdigest()
    run = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest


def test_a_corpus_of_one_document_is_refused_for_next_sentences(vocabulary):
    split = MemorySplit([[[10, 11, 12]] * 50])
    with pytest.raises(UserError, match=r"separate documents.*'sop'"):
        examples_of(split, vocabulary)
    assert examples_of(split, vocabulary, mode='sop').batch(np.arange(5))['nsp_weights'].any()


@pytest.mark.parametrize('mode', MODES)
def test_the_report_equals_figures_of_the_batches(split, vocabulary, mode):
    examples = examples_of(split, vocabulary, mode=mode, plans=4)
    report = examples.report
    batch = examples.batch(np.arange(examples.cycle_length))
    assert examples.cycle_length == 4 * report['examples_per_plan']
    assert abs(report['real_positions'] - batch['attention_mask'].mean()) < 0.005
    if mode == 'nsp':
        assert report['is_next'] == pytest.approx(1 - batch['nsp_labels'].mean(), abs=1e-6)
    else:
        assert report['is_next'] is None
    if mode == 'sop':
        assert report['one_sentence'] == pytest.approx(1 - batch['nsp_weights'].mean(), abs=1e-6)
    assert (report['one_sentence'] is None) == (mode not in ('nsp', 'sop'))
