"""Tests the launchers with fake gcloud, kubectl and sbatch."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import psutil
import pytest
from cloud import REPOSITORY, SLICE, TRAINING, Cloud

# A fake python: the scheduler and the workers of Dask, and bertjax. The workers run until bertjax ends.
DASK = """
case "$*" in
  -c*) echo "$0" ;;
  *"dask scheduler"*)
    for one; do [[ $one != --scheduler-file=* ]] || echo {} > "${one#*=}"; done
    while sleep 0.02; do :; done ;;
  *"dask worker"*)
    echo "worker: $*"
    [[ ! -e $FAKE/fails ]] || exit 3
    while [[ ! -e $FAKE/ended ]]; do sleep 0.02; done ;;
  *)
    printf '%s\\n' "$@"
    while [[ -e $FAKE/fails ]]; do sleep 0.02; done
    touch "$FAKE/ended"
    exit "$(cat "$FAKE/status")" ;;
esac
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('script', 'arguments', 'words'),
    [
        ('tpu_vm.sh', ('up', *SLICE), ['create', 'scp', 'uv pip', 'nohup', 'tail', 'delete']),
        (
            'gke_jobset.sh',
            ('apply', '--name=a', '--image=i', '--accelerator=tpu-v5-lite-podslice', '--topology=4x4'),
            ['kubectl apply', 'kind: JobSet'],
        ),
        ('slurm.sh', ('--nodes=2', '--gpus=8'), ['sbatch', '#SBATCH --requeue']),
        (
            'slurm.sh',
            ('--nodes=2', '--gpus=8', '--cpus=6'),
            ['sbatch', '#SBATCH --cpus-per-task=6', 'srun --kill-on-bad-exit=0 --cpus-per-task=6'],
        ),
    ],
)
def test_a_dry_run_calls_nothing(cloud: Cloud, script: str, arguments: tuple[str, ...], words: list[str]):
    output = cloud.launch(script, *arguments, '--dry-run', *TRAINING).stdout
    assert not cloud.calls
    assert all(word in output.replace('\\ ', ' ') for word in words), output


def test_a_jobset_is_applied_unless_it_exists(cloud: Cloud):
    yaml = pytest.importorskip('yaml', reason='reads the manifest; needs PyYAML')
    slices = ('--accelerator=tpu-v6e-slice', '--topology=4x4', '--slices=2', '--claim=disk', '--price=2.7')
    done = cloud.launch('gke_jobset.sh', 'apply', '--name=bert', '--image=repo/bertjax:tpu', *slices, *TRAINING)
    assert '32 chips x 2.70 = 86.40 an hour' in done.stderr
    query, call = cloud.calls
    assert query[1] == 'get'
    manifest = yaml.safe_load(call[-1])
    (job,) = manifest['spec']['replicatedJobs']
    spec = job['template']['spec']
    assert (job['replicas'], spec['parallelism'], spec['completions']) == (2, 4, 4)
    pod = spec['template']['spec']
    assert pod['containers'][0]['args'] == [*TRAINING[1:]]
    assert pod['containers'][0]['resources']['limits'] == {'google.com/tpu': 4}
    assert pod['volumes'][0]['persistentVolumeClaim']['claimName'] == 'disk'
    # A JobSet that cannot be applied is deleted with a message. One that already runs is not changed.
    apply = ('gke_jobset.sh', 'apply', '--name=bert', '--image=i', *slices, *TRAINING)
    assert cloud.launch(*apply, plan_status=1, status=1).stderr.endswith('nothing is left running\n')
    assert [call[1] for call in cloud.calls] == ['get', 'apply', 'delete']
    assert 'found a JobSet of this name' in cloud.launch(*apply, exists=True, status=2).stderr
    assert [call[1] for call in cloud.calls] == ['get']


def test_status_shows_a_jobset_and_its_pods(cloud: Cloud):
    cloud.launch('gke_jobset.sh', 'status', '--name=bert')
    expected = [['get', 'jobset/bert'], ['get', 'pods', '--selector=jobset.sigs.k8s.io/jobset-name=bert']]
    assert [call[1:] for call in cloud.calls] == expected


def test_a_slurm_job_is_requeued_if_it_can_continue(cloud: Cloud, tmp_path: pathlib.Path):
    cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', '--partition=long', '--activate=/dev/null', *TRAINING)
    (call,) = cloud.calls
    assert call[:2] == ['sbatch', '--partition=long'] and '#SBATCH --ntasks-per-node=8' in call[-1]
    job = tmp_path / 'job'
    job.write_text(call[-1])
    # This srun runs one task for each word of TASKS. Its status is the highest status of the tasks.
    run_all = 'for one in $TASKS; do STATUS=$one "${@:2}"; s=$?; ((s <= high)) || high=$s; done; exit ${high:-0}'
    python = 'exit $((STATUS < 1 || STATUS > 3 ? STATUS : STATUS + BERTJAX_STATUS_OFFSET))'
    cloud.add_programs(srun=run_all, python=python, scontrol='echo "$@"')
    for tasks, count, status, requeued in (
        ('0 0', 0, 0, False),
        ('2 2', 0, 2, False),
        ('4 2 4', 0, 2, False),
        ('137 3 4', 0, 3, False),
        ('4 137', 0, 137, True),
        ('4 4', 0, 4, True),
        ('75 75', 99, 75, True),
        ('143 4', 0, 143, True),
        ('4 4', 100, 4, False),
    ):
        environment = os.environ | {'PATH': f'{cloud.folder}:{os.environ["PATH"]}', 'SLURM_JOB_ID': '17'}
        environment |= {'SLURM_RESTART_COUNT': str(count), 'TASKS': tasks}
        done = subprocess.run(['bash', job], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout == 'requeue 17\n') == (status, requeued), (tasks, done)
    cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', '--activate=~/no env', *TRAINING)
    job.write_text(cloud.calls[-1][-1])
    done = subprocess.run(['bash', job], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and f'{os.environ["HOME"]}/no env' in done.stderr and not done.stdout
    refused = cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', *TRAINING, plan_status=1, status=1)
    assert 'nothing was queued' in refused.stderr


@pytest.mark.parametrize('whole_group', [True, False])
def test_a_slurm_job_waits_for_the_process_that_saves(cloud: Cloud, tmp_path: pathlib.Path, whole_group: bool):
    """A preemption signals all processes of a job, or only the program that srun starts."""
    cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', '--activate=/dev/null', *TRAINING)
    job = tmp_path / 'job'
    job.write_text(cloud.calls[0][-1])
    saving = 'trap "sleep 0.3; exit 75" TERM; echo started; for ((;;)); do sleep 0.05; done'
    cloud.add_programs(srun='exec "${@:2}"', python=saving, scontrol='echo "$@"')
    environment = cloud.environment | {'SLURM_JOB_ID': '17'}
    with subprocess.Popen(
        ['bash', job], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == 'started\n'
        if whole_group:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            psutil.Process(process.pid).children()[0].terminate()
        assert process.stdout.read() == 'requeue 17\n'
    assert process.returncode == 75


def _has_imported(process: psutil.Process) -> bool:
    """Whether a process has imported native code of a package. An interrupt of Python's own start is an error."""
    with contextlib.suppress(psutil.Error):
        return any('site-packages' in region.path for region in process.memory_maps())
    return False


def test_ctrl_c_ends_processes_that_are_starting(cloud: Cloud, tmp_path: pathlib.Path):
    """The signal goes to the process group of the script, as from a terminal, when the processes begin to import."""
    work = tmp_path / 'run'
    command = [REPOSITORY / 'launch' / 'local_hosts.sh', '2', '--config=configs/pretrain_tiny.py', f'--workdir={work}']
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=cloud.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 30
        while sum(map(_has_imported, children := psutil.Process(process.pid).children(recursive=True))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        finally:  # The end of the `with` block would wait for them.
            psutil.wait_procs([child.kill() or child for child in children if child.is_running()])
    assert process.returncode == 130, errors
    assert 'process 1: status 130' in errors and not (work / 'store').exists()
    assert not [one for one in psutil.process_iter(['cmdline']) if f'--workdir={work}' in (one.info['cmdline'] or [])]


def test_a_dask_cluster_over_ssh(cloud: Cloud, tmp_path: pathlib.Path):
    work, status = tmp_path / 'a run', cloud.folder / 'status'
    cloud.add_programs(python=DASK, ssh='echo "$1 $2 on $3"; exec bash -c "$4"')
    training = ('--', f'--workdir={work}', "--config.corpus='*.txt'")
    output = cloud.launch('dask.sh', '--hosts=a,b', '--dry-run', *training).stdout
    assert output.count('ssh -o BatchMode=yes') == 2 and not work.exists()
    status.write_text('0')
    done = cloud.launch('dask.sh', '--hosts=a,b', '--workers=3', *training)
    file = str(work / 'dask' / 'scheduler.json').replace(' ', r'\ ')
    flags = f'--config.beam=--runner=DaskRunner --dask_scheduler_file={file}'
    assert done.stdout.splitlines() == ['-m', 'bertjax.main', *training[1:], flags]
    for name in 'ab':
        log = (work / 'dask' / f'{name}.log').read_text()
        assert log.startswith(f'-o BatchMode=yes on {name}\nworker: ') and '--nworkers=3 --nthreads=1' in log
    (cloud.folder / 'ended').unlink()
    status.write_text('2')
    cloud.launch('dask.sh', *training, status=2)
    # A build without workers would wait forever.
    (cloud.folder / 'fails').touch()
    ended = cloud.launch('dask.sh', '--hosts=a,b', *training, status=1)
    assert 'a: its workers have ended' in ended.stderr and 'no workers are left' in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ('script', 'arguments', 'words'),
    [
        ('tpu_vm.sh', ('fly', *SLICE), 'fly: found no such verb'),
        ('tpu_vm.sh', ('create', '--name=a'), '--zone: found nothing'),
        ('tpu_vm.sh', ('create', *SLICE[:2], '--type=v5'), '--type=v5: expected a type with a number'),
        ('tpu_vm.sh', ('create', *SLICE[:2], '--type=v7-8'), '--type=v7-8: found an unknown kind'),
        ('tpu_vm.sh', ('create', *SLICE, '--price=cheap'), '--price=cheap: expected a number'),
        ('tpu_vm.sh', ('create', *SLICE, '--hours=a day'), '--hours=a day: expected a number'),
        ('tpu_vm.sh', ('create', *SLICE, '--prize=1'), '--prize=1: found an unknown option'),
        ('tpu_vm.sh', ('train', *SLICE), 'found no arguments of bertjax'),
        (
            'gke_jobset.sh',
            ('apply', '--name=a', '--image=b', '--accelerator=c', '--topology=3x3', *TRAINING),
            '--topology=3x3: found 9',
        ),
        ('slurm.sh', ('--nodes=two', '--gpus=8', *TRAINING), '--nodes=two: expected a whole number'),
        ('slurm.sh', ('--nodes=2', '--gpus=8', '--cpus=0', *TRAINING), '--cpus=0: expected a whole number'),
        ('slurm.sh', ('--nodes=2', *TRAINING), '--gpus: found nothing'),
        ('local_hosts.sh', ('two',), 'two: expected a number of processes'),
        ('dask.sh', ('--hosts=a',), 'found no arguments of bertjax'),
        ('dask.sh', ('--workers=two', *TRAINING), '--workers=two: expected a whole number'),
        ('dask.sh', TRAINING, '--workdir=gs://bucket/a run: found a bucket'),
        ('dask.sh', ('--', '--workdir=a', '--config.beam=--runner=X'), '--config.beam=--runner=X: found flags of Beam'),
    ],
)
def test_mistakes_are_reported_before_any_call(cloud: Cloud, script: str, arguments: tuple, words: str):
    done = cloud.launch(script, *arguments, status=2)
    assert done.stderr.strip().splitlines()[-1].startswith(f'error: {words}'), done.stderr
    assert not cloud.calls


@pytest.mark.slow
@pytest.mark.parametrize('script', ['tpu_vm.sh', 'gke_jobset.sh', 'slurm.sh', 'local_hosts.sh', 'dask.sh'])
def test_help_is_the_first_comment_of_the_file(cloud: Cloud, script: str):
    text = cloud.launch(script, '--help').stdout
    assert f'launch/{script}' in text and '#' not in text and len(text.splitlines()) > 4


@pytest.mark.slow
def test_shellcheck_finds_no_problem():
    checker = shutil.which('shellcheck') or pytest.skip('shellcheck is not installed: it is in the extra test')
    scripts = sorted((REPOSITORY / 'launch').glob('*.sh'))
    done = subprocess.run([checker, '-x', '-P', REPOSITORY / 'launch', *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
