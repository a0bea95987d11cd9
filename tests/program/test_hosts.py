"""Several processes compute one run with the results of one process, even if one is killed or stopped."""

import pathlib
import signal
import socket
import time

import numpy as np
import pytest
from running import (
    GLUE,
    RUN,
    SWEEP,
    TUNE,
    Program,
    assert_one_line,
    copy_workdir,
    reserve_port,
    results,
    rows,
    wait_for_exit,
    wait_for_step,
)
from test_distill import EVERY_PART, GENERAL, teacher

import bertjax
from bertjax.training.health.goodput_clock import TIMES
from bertjax.workdir.lock import EXPORTED, TRIALS

NEVER = ('--config.eval_every=0', '--config.checkpoint_every=0')


def _losses(workdir: pathlib.Path) -> list[float]:
    return [row['loss'] for row in rows(workdir / 'metrics.jsonl') if row.get('loss') is not None]


@pytest.mark.slow
def test_one_is_killed_and_started_again(program: Program, tmp_path: pathlib.Path, trained: pathlib.Path):
    """Two processes start with tensor parallelism and four resume with data; one process has the same results."""
    processes = program.start_together(2, f'--workdir={tmp_path}', *RUN, '--config.mesh.tensor=2')
    wait_for_step(processes[0], tmp_path, 10)
    processes[1].kill()
    killed = time.monotonic()
    end = wait_for_exit(processes[0], status=4)
    assert time.monotonic() - killed < 60
    assert 'another process of this run is lost' in end.stderr.strip().splitlines()[-1]
    wait_for_exit(processes[1], status=-signal.SIGKILL)

    first, *others = (
        wait_for_exit(process) for process in program.start_together(4, f'--workdir={tmp_path}', *RUN, '--verbosity=0')
    )
    assert _losses(tmp_path) == pytest.approx(_losses(trained), rel=1e-5)
    for name in ('ledger.jsonl', 'store/manifest.json'):
        assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()
    text = ['the river runs']
    assert np.array_equal(*(bertjax.load(tmp_path / 'export' / name).encode(text) for name in ('hf', 'orbax')))
    # Only the first process prints.
    assert 'continuing at step' in first.stdout and 'mesh data=4 x fsdp=1 x tensor=1' in first.stderr
    for other in others:
        assert 'mesh data' not in other.stderr
        assert not [line for line in other.stdout.splitlines() if line and not line.startswith('[Gloo]')]


@pytest.mark.slow
def test_all_processes_stop_when_one_is_stopped(program: Program, tmp_path: pathlib.Path, trained: pathlib.Path):
    """Two processes continue a run, whose newest checkpoint is damaged. Ctrl-C stops the one that does not write."""
    work = copy_workdir(trained, tmp_path / 'run')
    newest, former = (work / 'checkpoints' / str(step) for step in (24, 20))
    assert former.exists()
    largest = max(
        (path for path in (newest / 'state').rglob('*') if path.is_file()), key=lambda path: path.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:-1])
    more = (*RUN, '--config.steps=400', '--config.batch_size=8', *NEVER)
    processes = program.start_together(2, f'--workdir={work}', *more)
    wait_for_step(processes[0], work, 30)
    processes[1].send_signal(signal.SIGINT)
    ends = [wait_for_exit(process, status=75) for process in processes]
    assert 'checkpoint 24 is damaged' in ends[0].stdout and 'continuing at step 20' in ends[0].stdout
    last = rows(work / 'ledger.jsonl')[-1]['step']
    assert 30 <= last < 400 and (work / 'checkpoints' / str(last) / 'seal.json').exists()
    assert all(f'stopped at step {last} as asked' in end.stderr for end in ends)
    assert [row['first'] for row in rows(work / 'ledger.jsonl')] == list(range(0, 8 * last, 8))


@pytest.mark.slow
def test_ctrl_c_ends_a_process_that_waits_for_others(program: Program, tmp_path: pathlib.Path):
    """The process waits in compiled code, and `kill -INT` reaches only its parent process."""
    address = f'127.0.0.1:{reserve_port()}'
    flags = (f'--coordinator_address={address}', '--num_processes=2', '--process_id=0')
    process = program.start(f'--workdir={tmp_path}', *flags)
    deadline = time.monotonic() + 60
    host, port = address.split(':')
    with socket.socket() as client:
        while client.connect_ex((host, int(port))):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    wait_for_exit(process, status=130)


@pytest.mark.slow
def test_one_process_finishes_the_sweep_of_two(
    program: Program, tmp_path: pathlib.Path, tune: tuple[str, ...], swept: pathlib.Path
):
    """One of two processes is stopped; a single one continues. Results and files are those of one process."""
    arguments = (f'--workdir={tmp_path}', *tune, SWEEP[0], SWEEP[2], '--config.sweep.seeds=(1,)')
    processes = program.start_together(2, *arguments, **GLUE)
    trials = [path for path in (swept / TRIALS).iterdir() if path.name.endswith('seed=1')]
    wait_for_step(processes[0], tmp_path / TRIALS / trials[0].name, 20)
    processes[1].send_signal(signal.SIGTERM)
    assert all('stopped at step' in wait_for_exit(process, status=75).stderr for process in processes)
    assert 'continuing at step' in program.spawn(*arguments, **GLUE).stdout
    assert len(trials) == 2
    for trial in trials:
        folder = tmp_path / TRIALS / trial.name
        # The stop writes a row, and the first row after it averages only a part of its twelve steps.
        assert len(_losses(folder)) in (6, 7)
        assert _losses(folder)[-4:] == pytest.approx(_losses(trial)[-4:], rel=1e-4)
        assert (folder / 'ledger.jsonl').read_bytes() == (trial / 'ledger.jsonl').read_bytes()
        assert results(folder)['splits'] == results(trial)['splits']
        # The first trial of a group has the times of the whole group.
        names = [{path.name for path in one.iterdir()} - {TIMES} for one in (folder, trial)]
        assert names[0] == names[1]
    assert not (tmp_path / '.unfinished').exists()
    exported = (tmp_path / EXPORTED).read_text().strip()
    assert results(tmp_path / TRIALS / exported)['splits']['dev']['accuracy'] > 0.9
    assert (tmp_path / 'export' / 'hf' / 'model.safetensors').exists()


@pytest.mark.slow
def test_two_processes_distil_as_one_does(
    program: Program, tmp_path: pathlib.Path, rte: pathlib.Path, trained: pathlib.Path, tuned: pathlib.Path
):
    """Rows have two padded lengths, some are augmented, and the teacher runs on the devices of both processes."""
    recipe = {'recipe': 'configs/distilbert.py:glue:rte', 'small': False}
    flags = (f'--config.data={rte}', f'--config.distill.teacher={tuned}', *TUNE, '--config.epochs=1', *NEVER)
    flags += (
        '--config.distill.augment=1',
        f'--config.distill.augment_model={trained}',
        '--config.max_padded_lengths=2',
    )
    program.run(f'--workdir={tmp_path / "alone"}', *flags, **recipe)
    for process in program.start_together(2, f'--workdir={tmp_path / "together"}', *flags, **recipe):
        wait_for_exit(process)
    assert _losses(tmp_path / 'together') == pytest.approx(_losses(tmp_path / 'alone'), rel=1e-4)
    assert results(tmp_path / 'together')['splits'] == results(tmp_path / 'alone')['splits']
    # Without config.json, the layout of the rows comes from the flags and the data.
    (tmp_path / 'together' / 'config.json').unlink()
    for process in program.start_together(2, f'--workdir={tmp_path / "together"}', *flags, **recipe):
        wait_for_exit(process)
    for kind in ('features', 'export/hf'):
        names = [sorted(path.name for path in (tmp_path / one / kind).iterdir()) for one in ('alone', 'together')]
        assert names[0] == names[1]


@pytest.mark.slow
def test_two_processes_distil_on_text_as_one_does(program: Program, tmp_path: pathlib.Path, trained: pathlib.Path):
    """All distillation losses are used, and the student starts from layers of the teacher."""
    recipe = {'recipe': 'configs/distilbert.py', 'small': False}
    flags = (f'--config.corpus={program.corpus}', teacher(trained), *GENERAL, *EVERY_PART)
    program.run(f'--workdir={tmp_path / "alone"}', *flags, **recipe)
    for process in program.start_together(2, f'--workdir={tmp_path / "together"}', *flags, **recipe):
        wait_for_exit(process)
    assert _losses(tmp_path / 'together') == pytest.approx(_losses(tmp_path / 'alone'), rel=1e-5)
    for kind in ('.', 'export/hf', 'export/orbax', 'store', 'checkpoints/8'):
        names = [sorted(path.name for path in (tmp_path / one / kind).iterdir()) for one in ('alone', 'together')]
        assert names[0] == names[1], kind
    for name in ('ledger.jsonl', 'store/manifest.json', 'export/hf/config.json', 'export/hf/vocab.txt'):
        assert (tmp_path / 'together' / name).read_bytes() == (tmp_path / 'alone' / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize('stop', [False, True], ids=['while it trains', 'when it is stopped'])
def test_a_failed_save_ends_all_processes(program: Program, tmp_path: pathlib.Path, stop: bool):
    """Only the first process writes the seal, while the others already train or have finished their save."""
    work = tmp_path / 'run'
    code = f"""
        import sys
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        from killing import watch

        def refuse(name, path):
            if name == 'replace' and path.endswith('seal.json'):
                raise OSError(28, 'No space left on device', path)

        hook = watch(refuse, {str(work)!r})
        hook.__enter__()
    """
    failing = program.with_startup(tmp_path / 'startup', code)
    schedule = NEVER if stop else RUN
    processes = failing.start_together(2, f'--workdir={work}', *schedule, '--config.steps=400')
    if stop:
        wait_for_step(processes[0], work, 5)
        processes[1].send_signal(signal.SIGTERM)
    first, second = (wait_for_exit(process, status=2) for process in processes)
    assert 'a full disk' in assert_one_line(first)
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 2)'


@pytest.mark.slow
def test_a_mistake_ends_all_processes(program: Program, tmp_path: pathlib.Path):
    empty = tmp_path / 'empty.txt'
    empty.write_text('')
    processes = program.start_together(2, f'--workdir={tmp_path / "run"}', f'--config.corpus={empty}')
    start = time.monotonic()
    first, second = (wait_for_exit(process, status=2) for process in processes)
    assert time.monotonic() - start < 120
    assert str(empty) in assert_one_line(first)
    assert 'stopped: see the message of the first process' in second.stderr.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize('case', ['pre-training', 'fine-tuning', 'sweep', 'version', 'workdir'])
def test_processes_that_would_train_different_models_are_refused(
    program: Program, tmp_path: pathlib.Path, rte: pathlib.Path, tune: tuple[str, ...], case: str
):
    """One process has another option, version or workdir, or a file with other labels, whose path may differ."""
    flags, options, last, words = RUN, {}, '--config.mesh.fsdp=2', 'config.mesh.fsdp: found 2 in process 1'
    if case == 'version':
        code = "import os, jax; jax.__version__ = f'0.{os.getpid()}'"
        program, words = program.with_startup(tmp_path / 'startup', code), 'the jax version: found 0.'
    elif case == 'workdir':
        last, words = '--workdir=s3://b/run', 'the workdir: found s3://b/run in process 1, expected a local folder as'
    elif case != 'pre-training':
        split, sweep = ('train', ()) if case == 'fine-tuning' else ('dev', ('--config.sweep.seeds=(0,1)',))
        flags, options, words = (*tune, *sweep), GLUE, f'the {split} split: found '.replace('train split', 'data')
        path = copy_workdir(rte, tmp_path / 'rte') / f'{split}.tsv'
        header, record, *others = path.read_text().splitlines(keepends=True)
        label = 'entailment' if 'not_entailment' in record else 'not_entailment'
        path.write_text(''.join([header, '\t'.join([*record.split('\t')[:-1], f'{label}\n']), *others]))
        last = f'--config.data={tmp_path / "rte"}'
    for process in program.start_together(2, f'--workdir={tmp_path / "run"}', *flags, last=last, **options):
        line = assert_one_line(wait_for_exit(process, status=2))
        assert words in line and ' as in process 0; start all processes with the same workdir, config' in line


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (('--num_processes=2',), '--num_processes: found no --coordinator_address and no --process_id'),
        (('--coordinator_address=a:1', '--num_processes=2', '--process_id=2'), '--process_id: found 2'),
        (('--coordinator_address=a:1', '--num_processes=0', '--process_id=0'), '--num_processes: found 0'),
        (('--coordinator_address=a', '--num_processes=2', '--process_id=1'), '--coordinator_address: found a'),
        (('--coordinator_address=8476', '--num_processes=2', '--process_id=1'), '--coordinator_address: found 8476'),
        (
            ('--coordinator_address=a:1', '--num_processes=2', '--process_id=1', '--config.run=corpus'),
            '--config.run=corpus: found several processes',
        ),
    ],
)
def test_wrong_flags_of_processes_are_errors(
    program: Program, tmp_path: pathlib.Path, flags: tuple[str, ...], words: str
):
    assert words in program.error(f'--workdir={tmp_path / "run"}', *flags)
    assert not (tmp_path / 'run').exists()
