"""The training loop with a train step that only counts."""

import dataclasses

import numpy as np
import pytest
from loop_world import ROWS, Clock, World

from bertjax.checkpoint.position import Position
from bertjax.errors import NonFiniteError, PreemptedError
from bertjax.training import any_process_flags, loop, record
from bertjax.training.early_stopping import EarlyStopping
from bertjax.training.health import goodput_clock
from bertjax.training.health.ledger import ledger_damage


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loop, 'time', clock)
    monkeypatch.setattr(goodput_clock, 'time', clock)
    return clock


@pytest.fixture
def world(tmp_path, clock):
    def make(folder='run', **options):
        (tmp_path / folder).mkdir(exist_ok=True)
        return World(tmp_path / folder, clock, **options)

    return make


def test_the_order_of_events(world):
    w = world()
    state = w.run()
    assert w.events == [
        'begin 0', 'evaluate', 'load 0 from 0',
        'step 1: 0', 'step 2: 4', 'step 3: 8', 'evaluate', 'step 4: 12', 'save 4', 'step 5: 16', 'step 6: 20',
        'evaluate', 'close 0',
        'begin 1', 'load 1 from 0', 'step 7: 0', 'step 8: 4', 'save 8', 'step 9: 8', 'evaluate', 'step 10: 12',
        'evaluate', 'save 10', 'close 1',
    ]  # fmt: skip
    assert int(state.step) == 10
    assert {step: position for step, (_, position, _) in w.saved.items()} == {
        4: Position(4, 0, 16), 8: Position(8, 1, 8), 10: Position(10, 1, 16),
    }  # fmt: skip
    for step, (saved, _, _) in w.saved.items():
        assert int(saved.step) == step  # the position matches the state
    assert [loss for _, _, loss in w.saved.values()] == [None, None, float(state.params['kernel'])]


def test_the_ledger_names_every_example_once(world):
    w = world()
    w.run()
    ledger = w.lines('ledger.jsonl')
    assert [row['step'] for row in ledger] == list(range(1, 11))
    assert [row['phase'] for row in ledger] == [0] * 6 + [1] * 4
    assert [row['first'] for row in ledger] == [0, 4, 8, 12, 16, 20, 0, 4, 8, 12]
    assert {row['count'] for row in ledger} == {ROWS}


def test_evaluations_start_at_step_0_and_end_at_the_last_step(world):
    w = world(eval_every=0)
    w.run()
    assert [(row['step'], row['phase'], row['examples']) for row in w.rows('heldout')] == [(0, 0, 0), (10, 1, 16)]
    w = world('every', eval_every=3)
    w.run()
    assert [row['step'] for row in w.rows('heldout')] == [0, 3, 6, 9, 10]


def test_training_rows_are_means_over_steps_of_one_phase(world):
    w = world(log_every=4, eval_every=0, checkpoint_every=0)
    w.run()
    rows = w.rows('train')
    assert [(row['step'], row['phase']) for row in rows] == [(4, 0), (6, 0), (8, 1), (10, 1)]
    np.testing.assert_allclose([row['mlm_loss'] for row in rows], np.array([2.5, 5.5, 7.5, 9.5]) * 2)
    assert [row['grad_norm'] for row in rows] == [4, 6, 8, 10]  # the norm of the last step, not a mean
    assert [row['examples'] for row in rows] == [16, 24, 8, 16]


@pytest.mark.parametrize('log_every', [1, 2, 5])
@pytest.mark.parametrize('eval_every', [0, 1, 3])
def test_rates_exclude_evaluation_and_saving(world, log_every, eval_every):
    """A step takes 1 s, an evaluation 100 s and a save 50 s; the loop reads metrics up to two steps late."""
    w = world(log_every=log_every, eval_every=eval_every, checkpoint_every=1)
    w.run()
    rows = w.rows('train')
    assert rows[-1]['step'] == 10
    for row in rows:
        assert row['seconds_per_step'] == pytest.approx(1.0)
        assert row['sequences_per_s'] == pytest.approx(ROWS)
        assert row['tokens_per_s'] == pytest.approx(ROWS * 8)


@pytest.mark.parametrize('from_step', [4, 8])
def test_a_resumed_run_equals_an_uninterrupted_run(world, from_step):
    uninterrupted = world('whole', log_every=1)
    expected = uninterrupted.run()
    stopped = world('broken', stop_at=9, checkpoint_every=4, log_every=1)
    with pytest.raises(PreemptedError):
        stopped.run()
    state, position, _ = stopped.saved[from_step]
    again = world('broken', log_every=1)
    state = again.run(position, state)
    assert float(state.params['kernel']) == float(expected.params['kernel'])
    assert again.lines('ledger.jsonl') == uninterrupted.lines('ledger.jsonl')
    assert [row['step'] for row in again.rows('heldout')] == [row['step'] for row in uninterrupted.rows('heldout')]
    assert [row['mlm_loss'] for row in again.rows('train')] == [row['mlm_loss'] for row in uninterrupted.rows('train')]


def test_resuming_at_the_end_of_a_phase_starts_the_next_one(world):
    w = world(checkpoint_every=6)
    w.run()
    state, position, _ = w.saved[6]
    assert position == Position(6, 0, 24)
    again = world()
    again.run(position, state)
    assert again.events[:3] == ['begin 1', 'load 1 from 0', 'step 7: 0']


def test_a_phase_also_begins_if_the_previous_one_was_shortened(world):
    w = world()
    w.run()
    for step, expected in ((4, ['begin 1', 'load 1 from 0', 'step 5: 0']), (8, ['load 1 from 8', 'step 9: 8'])):
        state, position, _ = w.saved[step]
        again = world(f'from {step}', ends=(3, 6, 10))  # the second phase has two parts
        again.run(position, state)
        assert again.events[: len(expected)] == expected
        assert [e for e in again.events if e.startswith('begin')] == expected[:-2]
    state, position, _ = w.saved[4]
    again = world('second part', ends=(2, 3, 10))  # step 4 is in the second part of the second phase
    again.run(position, state)
    assert [e for e in again.events if e.startswith('begin')] == ['begin 1']


def test_a_longer_run_that_returns_to_a_phase_continues_its_examples(world, capsys):
    w = world()
    w.run()
    state, position, _ = w.saved[10]
    assert list(position.left) == [24, 0]
    longer = world(ends=(14, 18))  # steps of the phases, such as percentages of a larger number of steps
    assert 'returns to phase' not in capsys.readouterr().out
    longer.run(position, state)
    assert capsys.readouterr().out.count('the run returns to phase 0 until step 14: ') == 1
    assert [e for e in longer.events if e.startswith('load')] == ['load 0 from 24', 'load 1 from 16']
    rows = longer.lines('ledger.jsonl')
    assert [row['first'] for row in rows[6:]] == [0, 4, 8, 12, 24, 28, 32, 36, 16, 20, 24, 28]
    assert len({(row['phase'], row['first']) for row in rows}) == 18
    assert not ledger_damage(longer.folder / 'ledger.jsonl', longer.saved[18][1])


def test_resuming_a_finished_run_does_nothing(world):
    w = world()
    state = w.run()
    again = world()
    assert again.run(Position(10, 1, 16), state) is state
    assert again.events == []
    assert len(w.lines('ledger.jsonl')) == 10


def test_a_checkpoint_is_saved_after_some_minutes(world):
    """An evaluation of 100 s and two steps reach the limit of 102 s; later steps do not reach it again."""
    w = world(eval_every=0, checkpoint_every=0, minutes=102 / 60)
    w.run()
    assert list(w.saved) == [2, 10]


def test_a_stopped_run_saves_at_once(world):
    w = world(stop_at=5)
    with pytest.raises(PreemptedError, match='step 5') as error:
        w.run()
    assert error.value.exit_status == 75
    assert w.events[-3:] == ['save 5', 'saved', 'close 0']
    assert len(w.lines('ledger.jsonl')) == 5


def test_several_processes_stop_and_save_two_steps_later(world, monkeypatch):
    """A save at each step does not discard the request, but the minutes before a save do not cause another save."""
    monkeypatch.setattr(any_process_flags, 'is_multiprocess', lambda: True)
    with pytest.raises(PreemptedError, match='step 7'):
        world(stop_at=5, checkpoint_every=1).run()
    w = world('minutes', eval_every=0, checkpoint_every=0, minutes=102 / 60)
    w.run()
    assert list(w.saved) == [4, 10]


def test_the_loop_names_its_current_activity(world, monkeypatch):
    """A second signal prints the activity; a step compiles when its first batch arrives."""
    w, activities = world(eval_every=0), []
    make = w.phase

    def phase(*a):
        recorded = make(*a)

        def compile(on_compile):
            def step(state, batch):
                with on_compile('length 8'):
                    activities.append(f'compile: {w.doing}')
                activities.append(f'step: {w.doing}')
                return w.step(state, batch)

            return step

        recorded.begin = lambda state: activities.append(f'begin: {w.doing}') or state
        recorded.compile = compile
        return recorded

    monkeypatch.setattr(w, 'phase', phase)
    w.run()
    prepared, compiled = 'begin: the run is being prepared', 'compile: the training step is being compiled'
    trained = 'step: the current step is being finished'
    assert activities == [prepared, *[compiled, trained] * 6, prepared, *[compiled, trained] * 4]
    assert w.doing == 'checkpoint 10 is being written'


def test_a_stop_at_the_last_step_finishes_the_run(world):
    w = world(stop_at=10)
    assert int(w.run().step) == 10
    assert w.events.count('save 10') == 1


def test_skipped_steps_are_counted_and_excluded_from_means(world):
    w = world(bad_steps=(3, 5, 6), eval_every=0)
    state = w.run()
    assert int(state.skipped) == 3
    rows = {row['step']: row for row in w.rows('train')}
    assert rows[4]['mlm_loss'] == 8.0  # only step 4 counts
    assert rows[6]['mlm_loss'] is None
    assert [rows[step]['skipped'] for step in (2, 4, 6, 8)] == [0, 1, 3, 3]
    # The examples of a skipped step are used up.
    assert [row['first'] for row in w.lines('ledger.jsonl')][2:4] == [8, 12]


def test_three_skipped_steps_in_a_row_stop_the_run(world):
    w = world(bad_steps=(4, 5, 6), eval_every=0, checkpoint_every=1)
    with pytest.raises(NonFiniteError) as error:
        w.run()
    assert error.value.exit_status == 3
    assert 'at step 6' in str(error.value)
    assert '3rd time in a row' in str(error.value)
    assert 'learning rate (0.5 now' in str(error.value)
    # No checkpoint is saved after the last good step.
    assert sorted(w.saved) == [1, 2, 3]
    assert w.events[-1] == 'close 0'
    last = w.rows('train')[-1]  # the row of the failed steps
    assert (last['step'], last['skipped'], last['mlm_loss']) == (6, 3, None)


@pytest.mark.parametrize('behind', [record.CPU_READ_BEHIND, record.READ_BEHIND])
def test_the_error_names_the_third_step_although_it_is_read_late(world, monkeypatch, behind):
    monkeypatch.setattr(record, 'CPU_READ_BEHIND', behind)
    w = world(bad_steps=range(2, 11), eval_every=0, checkpoint_every=0)
    with pytest.raises(NonFiniteError, match='at step 4 '):
        w.run()
    assert w.done == 4 + behind


def test_without_an_evaluator_there_are_no_evaluation_rows(world, monkeypatch):
    w = world()
    make = w.phase
    monkeypatch.setattr(w, 'phase', lambda *a: dataclasses.replace(make(*a), evaluator=None))
    w.run()
    assert not w.rows('heldout')
    assert [loss for _, _, loss in w.saved.values()] == [None, None, None]


def test_an_error_in_the_data_closes_the_loader(world, monkeypatch):
    w = world()
    make = w.phase

    class BrokenLoader:
        def __next__(self):
            raise OSError('store vanished')

        def close(self):
            w.events.append('closed')

    def broken_phase(*a):
        phase = make(*a)
        phase.load = lambda first: BrokenLoader()
        return phase

    monkeypatch.setattr(w, 'phase', broken_phase)
    with pytest.raises(OSError, match='store vanished'):
        w.run()
    assert w.events[-1] == 'closed'


def test_patience_saves_the_best_and_ends_the_run(world):
    """The loss only grows: in the last phase, step 7 is the best, and step 8 ends the run.

    Earlier phases do not use up patience.
    """
    w = world(eval_every=1, checkpoint_every=6, log_every=100)
    w.patience = EarlyStopping(1)
    save, written = w.save, []
    w.save = lambda *arguments: (written.append([row['step'] for row in w.rows('train')]), save(*arguments))
    state = w.run()
    assert written == [[6], [6], [6, 8]]  # the last row of a phase is on disk before its last checkpoint
    assert w.events[w.events.index('begin 1') :] == [
        'begin 1', 'load 1 from 0', 'step 7: 0', 'evaluate', 'save 7', 'step 8: 4', 'evaluate', 'save 8', 'close 1',
    ]  # fmt: skip
    assert w.saved.keys() == {6, 7, 8} and int(state.step) == 8 and w.patience.should_stop
    before = list(w.events)
    w.run(w.saved[8][1], w.saved[8][0])
    assert w.events == before  # the run is finished


def test_the_best_checkpoint_is_in_the_right_phase(world, monkeypatch):
    """In phases without `may_be_best`, such as the first stage of a distillation, checkpoints have no cost."""
    w = world(eval_every=2, checkpoint_every=2)
    make = w.phase
    monkeypatch.setattr(w, 'phase', lambda *a: dataclasses.replace(make(*a), may_be_best=a[0] == 1))
    w.run()
    costs = {step: cost for step, (_, _, cost) in w.saved.items()}
    assert list(costs) == [2, 4, 6, 8, 10] and [cost is None for cost in costs.values()] == [True] * 3 + [False] * 2


def test_the_evaluation_at_step_0_can_be_turned_off(world):
    w = world(eval_every=4, checkpoint_every=0)
    w.evaluate_first = False
    w.run()
    assert [row['step'] for row in w.rows('heldout')] == [4, 8, 10]


def test_patience_needs_strictly_better_evaluations():
    patience = EarlyStopping(2)
    assert [patience.note(cost) for cost in (-0.5, -0.5, -0.6, None)] == [True, False, True, False]
    assert not patience.should_stop
    again = EarlyStopping(2, patience.state)
    assert not again.note(-0.6) and again.should_stop
    assert [EarlyStopping(2).note(cost) for cost in (float('nan'), float('inf'))] == [False, True]
    never = EarlyStopping(0)
    assert not any(never.note(1.0) and never.should_stop for _ in range(9)) and never.state == {}
