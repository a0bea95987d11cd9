"""Tests the launcher of TPU VMs with a fake gcloud."""

import json
import pathlib
import signal
import subprocess

import pytest
from cloud import REPOSITORY, SLICE, TRAINING, Cloud

REMOVAL = 'launch/tpu_vm.sh delete --name=bert --zone=us-west4-a'
ALL_STEPS = ['create', 'copy', 'install', 'train', 'follow', 'delete']


def test_up_creates_a_slice_trains_and_deletes_the_slice(cloud: Cloud):
    states = [['WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE']]
    price = ('--price=1.2', '--hours=6')
    mount = '--mount=10.0.0.2:/share'
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--spot', mount, *price, *TRAINING, states=states)
    assert cloud.steps == [*ALL_STEPS[:3], 'mount', *ALL_STEPS[3:]] and not cloud.exists
    assert '16 chips x 1.20 = 19.20 an hour; 6 hours: 115.20' in done.stderr
    assert 'waiting for bert: WAITING_FOR_RESOURCES' in done.stderr and done.stderr.endswith('bert is deleted\n')
    created = next(call for call in cloud.calls if 'create' in call)
    assert {'--spot', '--runtime-version=v2-alpha-tpuv5-lite', '--node-id=bert'} < set(created)
    train = next(call[-2] for call in cloud.calls if 'nohup' in call[-2])
    # The arguments pass through two shells unchanged.
    last = train.split('-m bertjax.main ')[1].split(' >> ')[0]
    assert subprocess.run(
        ['bash', '-c', f'printf "%s\\n" {last}'], capture_output=True, text=True
    ).stdout.splitlines() == [*TRAINING[1:]]


def test_a_preempted_slice_is_requested_again(cloud: Cloud):
    done = cloud.launch(
        'tpu_vm.sh', 'up', *SLICE, *TRAINING, states=[['ACTIVE'], ['ACTIVE']], ends=['cut', 'preempted', 0]
    )
    # Only the state of the slice causes a new request; a lost or refused connection does not.
    assert cloud.steps == [*ALL_STEPS[:5], *ALL_STEPS[4:], *ALL_STEPS]
    assert 'bert was preempted: requesting it again' in done.stderr


@pytest.mark.slow
def test_a_training_that_can_continue_is_started_again(cloud: Cloud):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[4, 75, 0])
    assert cloud.steps == [*ALL_STEPS[:3], *['train', 'follow'] * 3, 'delete']


@pytest.mark.slow
def test_a_restarted_machine_mounts_the_share_again(cloud: Cloud):
    work = ('--mount=10.0.0.2:/share', '--', '--workdir=/mnt/shared/run')
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *work, ends=['none', 0])
    assert cloud.steps == [*ALL_STEPS[:3], *['mount', 'train', 'follow'] * 2, 'delete']
    assert 'restarting it' in done.stderr
    cloud.launch('tpu_vm.sh', 'train', *SLICE, *work, exists=True)
    assert cloud.steps == ['mount', 'train']
    cloud.launch('tpu_vm.sh', 'install', *SLICE, work[0], exists=True)
    assert cloud.steps == ['copy', 'install', 'mount']


@pytest.mark.slow
def test_a_lost_connection_does_not_end_the_training(cloud: Cloud):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=['dropped', 'cut', 0], machines='READY')
    assert cloud.steps == [*ALL_STEPS[:4], *['follow'] * 3, 'delete']


@pytest.mark.slow
@pytest.mark.parametrize('status', [2, 3])
def test_a_mistake_ends_the_run_and_deletes_the_slice(cloud: Cloud, status: int):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[status], status=status)
    assert cloud.steps == ALL_STEPS and not cloud.exists


@pytest.mark.parametrize(('others', 'status'), [([4, 2, 4], 2), ([3, 1, 4], 1)])
def test_a_mistake_on_another_machine_ends_the_run(cloud: Cloud, others: list[int], status: int):
    """The first machine only reports that the other machine is lost."""
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[4], others=others, status=status)
    assert cloud.steps == (ALL_STEPS if status != 1 else ALL_STEPS[:-1])


@pytest.mark.slow
def test_a_slice_with_unpublished_files_is_not_deleted(cloud: Cloud):
    """After status 1, the only copy of the state may be in the machine's mirror of the bucket."""
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[1], status=1)
    assert cloud.steps == ALL_STEPS[:-1] and cloud.exists
    kept, follow, fetch, warning = done.stderr.splitlines()[-4:]
    assert (
        kept.startswith('bert is kept') and warning.endswith(f'this deletes it: {REMOVAL}') and 'ATTENTION' in warning
    )
    assert follow.strip() == 'launch/tpu_vm.sh follow --name=bert --zone=us-west4-a'
    cloud.launch('tpu_vm.sh', *fetch.split()[1:], f'--to={cloud.folder}', exists=True)
    assert 'bert:bertjax/../.cache/bertjax/workdirs' in cloud.calls[-1]
    relative = ('--keep', '--', '--config=pretrain_tiny', '--workdir=out/run')
    fetch = cloud.launch('tpu_vm.sh', 'up', *SLICE, *relative, ends=[1], status=1).stderr.splitlines()[-2]
    cloud.launch('tpu_vm.sh', *fetch.split()[1:], f'--to={cloud.folder}', exists=True)
    assert 'bert:bertjax/out/run' in cloud.calls[-1]


@pytest.mark.parametrize(
    ('options', 'workdir'),
    [
        ((), 'out/run'),
        pytest.param((), '/mnt/shared/run', marks=pytest.mark.slow),
        (('--mount=10.0.0.2:/share',), '/home/run'),
        pytest.param((), 'gs://', marks=pytest.mark.slow),
    ],
)
def test_a_workdir_that_would_be_deleted_is_refused(cloud: Cloud, options: tuple[str, ...], workdir: str):
    training = ('--', '--workdir=gs://bucket/run', f'--workdir={workdir}')
    refused = cloud.launch('tpu_vm.sh', 'up', *SLICE, *options, *training, status=2)
    assert refused.stderr.startswith(f'error: --workdir={workdir}: found a folder that is deleted with the machine')
    assert '--keep' in refused.stderr and not cloud.calls
    if options:
        cloud.launch('tpu_vm.sh', 'up', *SLICE, *options, '--keep', *training)
        assert cloud.exists


@pytest.mark.slow
def test_a_workdir_outside_the_machine_is_accepted(cloud: Cloud):
    for options, workdir in (((), 's3://bucket/run'), (('--mount=10.0.0.2:/share',), '/mnt/shared/run')):
        cloud.launch('tpu_vm.sh', 'up', *SLICE, *options, '--', f'--workdir={workdir}')
        assert cloud.steps[-1] == 'delete'


@pytest.mark.slow
def test_a_slice_that_is_lost_before_it_is_active_is_requested_again(cloud: Cloud):
    lost = ['PROVISIONING', 'SUSPENDED']
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--spot', *TRAINING, states=[lost, lost, ['ACTIVE']])
    assert cloud.steps == [*['create', 'delete'] * 2, *ALL_STEPS] and not cloud.exists
    assert done.stderr.count('requesting it again') == 2
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--restarts=1', *TRAINING, states=[lost, lost, lost], status=4)
    assert cloud.steps == ['create', 'delete'] * 2 and not cloud.exists
    assert 'stopped after 1 restarts (--restarts): lost' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('plan', [{'create': [1]}, {'states': [['PROVISIONING', 'FAILED']]}])
def test_a_failed_request_is_deleted(cloud: Cloud, plan: dict):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, status=1, **plan)
    assert cloud.steps == ['create', 'delete'] and not cloud.exists
    assert done.stderr.endswith('nothing is left running\n')


@pytest.mark.slow
def test_a_kept_slice_is_reported(cloud: Cloud):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--keep', *TRAINING)
    assert cloud.steps == ALL_STEPS[:-1] and cloud.exists
    assert f'ATTENTION: bert may still exist and cost money; this deletes it: {REMOVAL}' in done.stderr


@pytest.mark.slow
def test_a_training_that_always_stops_ends_after_the_allowed_restarts(cloud: Cloud):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--restarts=2', *TRAINING, ends=[137, 4, 4], status=4)
    assert cloud.steps == [*ALL_STEPS[:3], *['train', 'follow'] * 3, 'delete'] and not cloud.exists
    assert 'stopped after 2 restarts' in done.stderr


def test_an_existing_slice_or_training_is_neither_started_again_nor_deleted(cloud: Cloud):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, '--keep', *TRAINING, exists=True, running=True)
    assert cloud.steps == ['follow']
    # If gcloud fails or the name is taken, nothing is created and nothing is deleted.
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, exists=True, running=True, fails={'describe': 1}, status=1)
    assert cloud.steps == [] and cloud.exists
    cloud.launch('tpu_vm.sh', 'create', *SLICE, exists=True, status=2)
    assert cloud.steps == [] and cloud.exists
    cloud.launch('tpu_vm.sh', 'train', *SLICE, *TRAINING, exists=True, running=True, status=2)
    assert cloud.steps == []


@pytest.mark.slow
@pytest.mark.parametrize('lost', ['PREEMPTED', 'TERMINATED', 'STOPPED'])
def test_lost_machines_of_an_active_request_are_detected(cloud: Cloud, lost: str):
    # The first query finds the machines lost, and the slice is requested again. The new machines are lost too.
    options = ('--restarts=0', *TRAINING)
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *options, exists=True, machines=lost, status=4)
    assert cloud.steps == ['delete', 'create', 'delete'] and not cloud.exists
    assert f'is not available: {lost}' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fails', 'steps', 'left'),
    [
        (
            {'scp': 2, 'uv pip': 1, 'nohup': 1, 'tail': 3, 'delete': 2},
            ['create', *['copy'] * 3, *['install'] * 2, *['train'] * 2, *['follow'] * 4, *['delete'] * 3],
            False,
        ),
        ({'scp': 9}, ['create', *['copy'] * 5], True),
        ({'uv pip': 9}, ['create', 'copy', *['install'] * 5], True),
        ({'delete': 9}, [*ALL_STEPS, *['delete'] * 4], True),
    ],
)
def test_a_failed_step_is_repeated_and_a_remaining_slice_is_reported(
    cloud: Cloud, fails: dict, steps: list[str], left: bool
):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, fails=fails, status=int(left))
    assert cloud.steps == steps and cloud.exists == left
    assert done.stderr.endswith(f'this deletes it: {REMOVAL}\n' if left else 'bert is deleted\n')
    assert ('ATTENTION' in done.stderr) == left


@pytest.mark.slow
def test_an_interrupt_reports_the_remaining_slice(cloud: Cloud):
    (cloud.folder / 'plan').write_text(json.dumps({'states': [['WAITING_FOR_RESOURCES']], 'ends': []}))
    command = [REPOSITORY / 'launch' / 'tpu_vm.sh', 'up', *SLICE, *TRAINING]
    process = subprocess.Popen(command, env=cloud.environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if 'waiting for bert' in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().endswith(f'this deletes it: {REMOVAL}\n')
    assert process.wait(timeout=30) == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'chips'), [('v5litepod-16', 16), ('v6e-16', 16), ('v5p-32', 16), ('v4-32', 16), ('v3-8', 4), ('v2-8', 4)]
)
def test_the_price_follows_from_the_chips_of_the_type(cloud: Cloud, kind: str, chips: int):
    done = cloud.launch('tpu_vm.sh', 'create', *SLICE[:2], f'--type={kind}', '--price=2', '--dry-run')
    assert done.stderr == f'{chips} chips x 2.00 = {2 * chips}.00 an hour\n'


@pytest.mark.slow
def test_the_remote_commands_work_in_bash(cloud: Cloud, tmp_path: pathlib.Path):
    home = tmp_path / 'home'
    (home / 'bertjax').mkdir(parents=True)
    (home / 'venv' / 'bin').mkdir(parents=True)
    # This gcloud runs each remote command in a local shell. The first training hangs.
    gcloud = '#!/bin/bash\nfor a; do [[ $a != --command=* ]] || HOME=$H exec bash -c "cd; ${a#--command=}"; done\n'
    (cloud.folder / 'gcloud').write_text(gcloud)
    python = home / 'venv' / 'bin' / 'python'
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"; [[ -e ~/again ]] || { touch ~/again; sleep 300; }; exit 75\n')
    python.chmod(0o755)

    def launch(verb: str, *arguments: str) -> subprocess.CompletedProcess:
        command = [REPOSITORY / 'launch' / 'tpu_vm.sh', verb, *SLICE, *arguments]
        environment = cloud.environment | {'H': str(home)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    assert launch('train', *TRAINING).returncode == 0
    group = int((home / 'bertjax.pid').read_text())
    running = launch('train', *TRAINING)
    assert running.returncode == 2 and 'a training that is running on bert' in running.stderr
    subprocess.run(['pkill', '-g', str(group), 'sleep'], check=True)
    assert launch('follow').returncode == 75
    assert launch('train', *TRAINING).returncode == 0
    followed = launch('follow')
    assert followed.returncode == 75, followed
    assert followed.stdout.splitlines()[-5:] == ['-m', 'bertjax.main', *TRAINING[1:]]
    assert 'ATTENTION: bert' in followed.stderr
