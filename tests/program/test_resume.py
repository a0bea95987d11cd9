"""After a kill, a signal or damage, the same command continues with the same bits."""

import json
import pathlib
import random
import signal
import time

import pytest
from golden_runs import rewind
from running import RUN, WEIGHTS, Program, copy_workdir, rows, wait_for_exit, wait_for_step


def assert_same_run(workdir: pathlib.Path, trained: pathlib.Path) -> None:
    for name in ('ledger.jsonl', WEIGHTS, 'config.json'):
        assert (workdir / name).read_bytes() == (trained / name).read_bytes(), name
    assert rows(workdir / 'metrics.jsonl', 'heldout') == rows(trained / 'metrics.jsonl', 'heldout')


@pytest.mark.slow
def test_kill_9_again_and_again_ends_in_the_same_bits(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The first kill comes before any checkpoint can be finished, the second late in the run."""
    moments = random.Random(2018)
    for low, high in ((1, 3), (12, 22)):
        process = program.start(f'--workdir={tmp_path}', *RUN)
        wait_for_step(process, tmp_path, moments.randint(low, high))
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    program.spawn(f'--workdir={tmp_path}', *RUN)
    assert_same_run(tmp_path, trained)


# A phase of 12 steps, then a phase whose batches have 4 and 8 rows from steps 12 and 20 on.
RAMP = (
    '--config.phases[0].steps=50%',
    '--config.phases[0].seq_len=32',
    '--config.phases[0].max_predictions=5',
    '--config.phases[1].steps=50%',
    '--config.phases[1].seq_len=32',
    '--config.phases[1].max_predictions=5',
    '--config.phases[1].reset_optimizer=True',
    '--config.phases[1].batch_ramp=0.7',
    '--config.phases[1].batch_size_start=4',
)
STABLE = ('--config.optimizer.name=stable_adamw', '--config.schedule.name=wsd', '--config.z_loss=1e-4')
AVERAGED = ('--config.ema_decay=0.9',)
MODERN = (
    '--config.model.mlp=geglu',
    '--config.model.pre_norm=True',
    '--config.model.first_attention_norm=False',
    '--config.model.position=rope',
    '--config.model.pooler=transform',
    '--config.model.num_segments=0',
    '--config.pairs.mode=full_sentences',
)
# The other tests use BERT's optimizer, which compiles faster.
TRAININGS = {
    'muon, gated MLPs and an average': ('pretrain_tiny', (*MODERN, *AVERAGED)),
    'stable_adamw, an average and a ramp': ('pretrain_base', ('--config.model.num_heads=4', *STABLE, *AVERAGED, *RAMP)),
}


@pytest.mark.slow
@pytest.mark.parametrize('training', TRAININGS)
def test_a_killed_run_with_another_optimizer_ends_in_the_same_bits(
    program: Program, tmp_path: pathlib.Path, training: str
):
    """The checkpoint of step 16 is within the batch ramp."""
    recipe, changes = TRAININGS[training]
    changes += ('--config.checkpoint_every=8',)
    options = {'recipe': f'configs/{recipe}.py'}
    program.run(f'--workdir={tmp_path / "whole"}', *RUN, *changes, **options)
    rewind(copy_workdir(tmp_path / 'whole', tmp_path / 'killed'), step=16)
    out = program.run(f'--workdir={tmp_path / "killed"}', *RUN, *changes, **options).stdout
    assert 'continuing at step 16 of 24' in out
    assert_same_run(tmp_path / 'killed', tmp_path / 'whole')
    if RAMP[0] in changes:
        counts = [8] * 12 + [4] * 8 + [8] * 4
        first_examples = [sum(counts[:step]) if step < 12 else sum(counts[12:step]) for step in range(24)]
        ledger = [(row['first'], row['count']) for row in rows(tmp_path / 'killed' / 'ledger.jsonl')]
        assert ledger == list(zip(first_examples, counts, strict=True))


def slow_to_seal(program: Program, folder: pathlib.Path, workdir: pathlib.Path, seconds: float) -> Program:
    """Returns a program that waits `seconds` before it writes the seal of a checkpoint."""
    code = f"""
        import sys, time
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        from killing import watch
        slow = lambda name, path: name == 'replace' and path.endswith('seal.json') and time.sleep({seconds})
        hook = watch(slow, {str(workdir)!r})
        hook.__enter__()
    """
    return program.with_startup(folder, code)


@pytest.mark.slow
def test_ctrl_c_saves_at_the_next_step(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """A second signal during the save changes nothing, but a message says what the run waits for."""
    workdir = tmp_path / 'run'
    process = slow_to_seal(program, tmp_path / 'slow', workdir, 1.0).start(f'--workdir={workdir}', *RUN)
    wait_for_step(process, workdir, 2)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.15)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75, f'{out}\n{err}'
    assert 'Traceback' not in err and 'continues' in err.splitlines()[-1]
    assert 'stop requested again: ' in err and 'a third signal ends the process' in err
    step = len(rows(workdir / 'ledger.jsonl'))
    assert 2 <= step < 24
    assert (workdir / 'checkpoints' / str(step) / 'seal.json').exists()
    result = program.spawn(f'--workdir={workdir}', *RUN)
    assert f'continuing at step {step} of 24' in result.stdout
    assert_same_run(workdir, trained)


@pytest.mark.slow
def test_a_third_signal_ends_the_process_at_once(program: Program, tmp_path: pathlib.Path):
    """For the next run this end is the same as `kill -9`."""
    workdir = tmp_path / 'run'
    process = slow_to_seal(program, tmp_path / 'slow', workdir, 60.0).start(f'--workdir={workdir}', *RUN)
    wait_for_step(process, workdir, 2)
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM and 'Traceback' not in err
    assert 'stop requested again: ' in err


def test_sigterm_ends_the_first_process_of_a_container(program: Program, tmp_path: pathlib.Path):
    """The kernel drops a signal to process 1 unless it has a handler, which a training has and another verb needs."""
    code = """
        import os, time
        from bertjax.commands import vocab

        os.getpid = lambda: 1

        def run(config, workdir):
            print('started', flush=True)
            time.sleep(60)

        vocab.run = run
    """
    started = program.with_startup(tmp_path / 'code', code).start(f'--workdir={tmp_path}', '--config.run=vocab')
    assert started.stdout.readline() == 'started\n'
    started.send_signal(signal.SIGTERM)
    assert wait_for_exit(started, 128 + signal.SIGTERM).stderr == ''


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_skipped(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'run')
    files = [path for path in (workdir / 'checkpoints' / '24').rglob('*') if path.is_file()]
    largest = max((path for path in files if path.name != 'seal.json'), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    result = program.spawn(f'--workdir={workdir}', *RUN)
    assert 'checkpoint 24 is damaged' in result.stdout
    assert 'continuing at step 20 of 24' in result.stdout
    assert_same_run(workdir, trained)


def test_damaged_checkpoints_are_not_overwritten(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(trained, tmp_path / 'run')
    for seal in (workdir / 'checkpoints').rglob('seal.json'):
        seal.write_text('{}')
    assert 'all damaged' in program.error(f'--workdir={workdir}', *RUN)


@pytest.mark.parametrize(
    ('change', 'name'),
    [
        ('--config.model.width=64', 'config.model.width'),
        ('--config.optimizer.name=lamb', 'config.optimizer.name'),
        ('--config.vocab.size=60', 'tokenizer'),
        ('--config.corpus_options.heldout=0.3', 'store'),
        ('--config.z_loss=0.01', 'config.z_loss'),  # the run is finished
    ],
)
def test_changes_of_model_or_data_are_refused(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, change: str, name: str
):
    workdir = copy_workdir(trained, tmp_path / 'run')
    error = program.error(f'--workdir={workdir}', *RUN, change)
    assert name in error
    assert (workdir / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()
    assert (workdir / 'config.json').read_bytes() == (trained / 'config.json').read_bytes()


@pytest.mark.slow
def test_changes_of_batch_size_and_learning_rate_are_allowed_and_printed(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(trained, tmp_path / 'run')
    changes = ('--config.steps=26', '--config.batch_size=16', '--config.learning_rate=1e-4')
    result = program.run(f'--workdir={workdir}', *RUN, *changes)
    for line in ('batch_size: 8 -> 16', 'learning_rate: 0.001 -> 0.0001', 'steps: 24 -> 26'):
        assert f'changed since the checkpoint: {line}' in result.stdout
    used = rows(workdir / 'ledger.jsonl')[-2:]
    assert used == [
        {'step': 25, 'phase': 0, 'first': 192, 'count': 16},
        {'step': 26, 'phase': 0, 'first': 208, 'count': 16},
    ]


def test_non_finite_steps_stop_the_run_and_leave_the_checkpoint(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        'bertjax.run_verb.check_ranges', lambda config: None
    )  # no allowed learning rate overflows reliably
    workdir = copy_workdir(trained, tmp_path / 'run')
    before = (workdir / 'checkpoints/24/seal.json').read_bytes()
    explode = ('--config.steps=40', '--config.learning_rate=1e38', '--config.warmup_fraction=0.0')
    result = program.run(f'--workdir={workdir}', *RUN, *explode, '--config.checkpoint_every=100', status=3)
    last = result.stderr.strip().splitlines()[-1]
    assert 'stopped: at step' in last and 'learning rate' in last and 'Traceback' not in result.stderr
    assert (workdir / 'checkpoints/24/seal.json').read_bytes() == before
    result = program.run(f'--workdir={workdir}', *RUN)
    assert json.loads((workdir / 'summary.json').read_text())['steps'] == 24
