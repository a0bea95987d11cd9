"""The launchers beside programs that stand in for gcloud, kubectl and sbatch: what they call, and what they do then."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
TRAINING = ('--', '--config=configs/pretrain_base.py', '--workdir=gs://bucket/a run', "--config.corpus='*.txt'")
SLICE = ('--name=bert', '--zone=us-west4-a', '--type=v5litepod-16')


class Cloud:
    """Folder of the stand-ins; see fake.py."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in ('gcloud', 'kubectl', 'sbatch'):
            shutil.copy(pathlib.Path(__file__).with_name('fake.py'), folder / name)
            (folder / name).chmod(0o755)

    def launch(self, script: str, *arguments: str, status: int = 0, **plan) -> subprocess.CompletedProcess:
        (self.folder / 'plan').write_text(json.dumps({'states': [['ACTIVE']], 'ends': [0], **plan}))
        (self.folder / 'calls').unlink(missing_ok=True)
        done = subprocess.run(
            [REPOSITORY / 'launch' / script, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder), str(pathlib.Path(sys.executable).parent), os.environ['PATH']])
        return os.environ | {'PATH': path, 'FAKE': str(self.folder), 'LAUNCH_WAIT_SECONDS': '0'}

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / 'calls'
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def steps(self) -> list[str]:
        """What was asked of gcloud, in a word each, without questions."""
        words = {
            'create': 'create',
            'delete': 'delete',
            'scp': 'copy',
            'uv pip': 'install',
            'sudo mount 10.0.0.2:/share /mnt/shared': 'mount',
            'nohup': 'train',
            'tail': 'follow',
        }
        told = [' '.join(call) for call in self.calls]
        told = [line for line in told if 'describe' not in line and 'training=' not in line]
        return [next(step for word, step in reversed(words.items()) if word in line) for line in told]

    @property
    def exists(self) -> bool:
        return json.loads((self.folder / 'plan').read_text()).get('exists', False)


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


REMOVAL = 'launch/tpu_vm.sh delete --name=bert --zone=us-west4-a'
WHOLE = ['create', 'copy', 'install', 'train', 'follow', 'delete']


def test_a_run_from_nothing_to_nothing(cloud: Cloud):
    states = [['WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE']]
    price = ('--price=1.2', '--hours=6')
    mount = '--mount=10.0.0.2:/share'
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--spot', mount, *price, *TRAINING, states=states)
    assert cloud.steps == [*WHOLE[:3], 'mount', *WHOLE[3:]] and not cloud.exists
    assert '16 chips x 1.20 = 19.20 an hour; 6 hours: 115.20' in done.stderr
    assert 'waiting for bert: WAITING_FOR_RESOURCES' in done.stderr and done.stderr.endswith('bert is deleted\n')
    created = next(call for call in cloud.calls if 'create' in call)
    assert {'--spot', '--runtime-version=v2-alpha-tpuv5-lite', '--node-id=bert'} < set(created)
    train = next(call[-2] for call in cloud.calls if 'nohup' in call[-2])
    # As the arguments came, through two shells.
    last = train.split('-m bertjax.main ')[1].split(' >> ')[0]
    assert subprocess.run(
        ['bash', '-c', f'printf "%s\\n" {last}'], capture_output=True, text=True
    ).stdout.splitlines() == [*TRAINING[1:]]


def test_a_slice_that_is_taken_away_is_asked_for_again(cloud: Cloud):
    done = cloud.launch(
        'tpu_vm.sh', 'up', *SLICE, *TRAINING, states=[['ACTIVE'], ['ACTIVE']], ends=['cut', 'preempted', 0]
    )
    # A connection that breaks, and one that is not to be had, are no reason: only what gcloud says of the slice.
    assert cloud.steps == [*WHOLE[:5], *WHOLE[4:], *WHOLE]
    assert 'bert was taken away: it is asked for again' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('status', [4, 75])
def test_a_training_that_can_go_on_is_started_again(cloud: Cloud, status: int):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[status, status, 0])
    assert cloud.steps == [*WHOLE[:3], *['train', 'follow'] * 3, 'delete']


@pytest.mark.slow
def test_a_lost_connection_is_no_end(cloud: Cloud):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=['dropped', 'cut', 0], machines='READY')
    assert cloud.steps == [*WHOLE[:4], *['follow'] * 3, 'delete']


@pytest.mark.slow
@pytest.mark.parametrize('status', [1, 2, 3])
def test_a_mistake_ends_it_and_leaves_nothing(cloud: Cloud, status: int):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, ends=[status], status=status)
    assert cloud.steps == WHOLE and not cloud.exists


@pytest.mark.slow
@pytest.mark.parametrize('plan', [{'create': [1]}, {'states': [['PROVISIONING', 'FAILED']]}])
def test_what_cannot_be_had_leaves_nothing(cloud: Cloud, plan: dict):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, status=1, **plan)
    assert cloud.steps == ['create', 'delete'] and not cloud.exists
    assert done.stderr.endswith('nothing is left running\n')


@pytest.mark.slow
def test_what_is_kept_is_said(cloud: Cloud):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--keep', *TRAINING)
    assert cloud.steps == WHOLE[:-1] and cloud.exists
    assert f'LOOK: bert may still be there and cost money; this deletes it: {REMOVAL}' in done.stderr


@pytest.mark.slow
def test_a_training_that_always_stops_is_given_up(cloud: Cloud):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, '--restarts=2', *TRAINING, ends=[137, 4, 4], status=4)
    assert cloud.steps == [*WHOLE[:3], *['train', 'follow'] * 3, 'delete'] and not cloud.exists
    assert 'started again 2 times' in done.stderr


def test_what_is_there_already_is_not_begun_again_nor_deleted(cloud: Cloud):
    cloud.launch('tpu_vm.sh', 'up', *SLICE, '--keep', *TRAINING, exists=True, running=True)
    assert cloud.steps == ['follow']
    # Where gcloud cannot tell, and where the name is taken, nothing is created and nothing deleted.
    cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, exists=True, running=True, fails={'describe': 1}, status=1)
    assert cloud.steps == [] and cloud.exists
    cloud.launch('tpu_vm.sh', 'create', *SLICE, exists=True, status=2)
    assert cloud.steps == [] and cloud.exists
    cloud.launch('tpu_vm.sh', 'train', *SLICE, *TRAINING, exists=True, running=True, status=2)
    assert cloud.steps == []


@pytest.mark.slow
@pytest.mark.parametrize('lost', ['PREEMPTED', 'TERMINATED', 'STOPPED'])
def test_machines_that_are_taken_away_before_the_request_knows(cloud: Cloud, lost: str):
    # The first question about the machines finds them gone, and the second asks for new ones.
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, exists=True, machines=lost, status=1)
    assert cloud.steps == ['delete', 'create', 'delete'] and not cloud.exists
    assert f'not to be had: {lost}' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fails', 'steps', 'left'),
    [
        ({'describe': 0, 'scp': 2}, [*WHOLE[:2], 'copy', 'copy', *WHOLE[2:]], False),
        ({'scp': 9}, ['create', *['copy'] * 5], True),
        ({'uv pip': 9}, ['create', 'copy', *['install'] * 5], True),
        ({'nohup': 1}, [*WHOLE[:4], *WHOLE[3:]], False),
        ({'tail': 3}, [*WHOLE[:4], *['follow'] * 4, 'delete'], False),
        ({'delete': 2}, [*WHOLE, 'delete', 'delete'], False),
        ({'delete': 9}, [*WHOLE, *['delete'] * 4], True),
    ],
)
def test_each_step_that_fails_leaves_nothing_unsaid(cloud: Cloud, fails: dict, steps: list[str], left: bool):
    done = cloud.launch('tpu_vm.sh', 'up', *SLICE, *TRAINING, fails=fails, status=int(left))
    assert cloud.steps == steps and cloud.exists == left
    assert done.stderr.endswith(f'this deletes it: {REMOVAL}\n' if left else 'bert is deleted\n')
    assert ('LOOK' in done.stderr) == left


@pytest.mark.slow
def test_an_interrupt_says_what_is_left(cloud: Cloud):
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
def test_chips_of_a_type(cloud: Cloud, kind: str, chips: int):
    done = cloud.launch('tpu_vm.sh', 'create', *SLICE[:2], f'--type={kind}', '--price=2', '--dry-run')
    assert done.stderr == f'{chips} chips x 2.00 = {2 * chips}.00 an hour\n'


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
    ],
)
def test_a_dry_run_calls_nothing(cloud: Cloud, script: str, arguments: tuple[str, ...], words: list[str]):
    said = cloud.launch(script, *arguments, '--dry-run', *TRAINING).stdout
    assert not cloud.calls
    assert all(word in said.replace('\\ ', ' ') for word in words), said


@pytest.mark.slow
def test_what_the_machines_are_told_works_in_their_shell(cloud: Cloud, tmp_path: pathlib.Path):
    home = tmp_path / 'home'
    (home / 'bertjax').mkdir(parents=True)
    (home / 'venv' / 'bin').mkdir(parents=True)
    # Each command in a shell here, as ssh would give it to one there; the first training is one that hangs.
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
    assert running.returncode == 2 and 'a training runs on bert' in running.stderr
    subprocess.run(['pkill', '-g', str(group), 'sleep'], check=True)
    assert launch('follow').returncode == 75
    assert launch('train', *TRAINING).returncode == 0
    followed = launch('follow')
    assert followed.returncode == 75, followed
    assert followed.stdout.splitlines()[-5:] == ['-m', 'bertjax.main', *TRAINING[1:]]
    assert 'LOOK: bert' in followed.stderr


def test_a_jobset(cloud: Cloud):
    yaml = pytest.importorskip('yaml', reason='reads the manifest; needs PyYAML')
    slices = ('--accelerator=tpu-v6e-slice', '--topology=4x4', '--slices=2', '--claim=disk', '--price=2.7')
    done = cloud.launch('gke_jobset.sh', 'apply', '--name=bert', '--image=repo/bertjax:tpu', *slices, *TRAINING)
    assert '32 chips x 2.70 = 86.40 an hour' in done.stderr
    asked, call = cloud.calls
    assert asked[1] == 'get'
    manifest = yaml.safe_load(call[-1])
    (job,) = manifest['spec']['replicatedJobs']
    spec = job['template']['spec']
    assert (job['replicas'], spec['parallelism'], spec['completions']) == (2, 4, 4)
    pod = spec['template']['spec']
    assert pod['containers'][0]['args'] == [*TRAINING[1:]]
    assert pod['containers'][0]['resources']['limits'] == {'google.com/tpu': 4}
    assert pod['volumes'][0]['persistentVolumeClaim']['claimName'] == 'disk'
    # One that fails is cleared away, aloud; one that runs already is left alone.
    apply = ('gke_jobset.sh', 'apply', '--name=bert', '--image=i', *slices, *TRAINING)
    assert cloud.launch(*apply, plan_status=1, status=1).stderr.endswith('nothing is left running\n')
    assert [call[1] for call in cloud.calls] == ['get', 'apply', 'delete']
    assert 'found a JobSet of this name' in cloud.launch(*apply, exists=True, status=2).stderr
    assert [call[1] for call in cloud.calls] == ['get']


@pytest.mark.slow
def test_a_slurm_job_is_queued_again_where_it_can_go_on(cloud: Cloud, tmp_path: pathlib.Path):
    cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', '--partition=long', '--activate=/dev/null', *TRAINING)
    (call,) = cloud.calls
    assert call[:2] == ['sbatch', '--partition=long'] and '#SBATCH --ntasks-per-node=8' in call[-1]
    job = tmp_path / 'job'
    job.write_text(call[-1])
    for status, count, again in (
        (0, 0, False),
        (2, 0, False),
        (4, 0, True),
        (75, 99, True),
        (137, 0, True),
        (4, 100, False),
    ):
        for name, body in (('srun', f'exit {status}'), ('scontrol', 'echo "$@"')):
            (cloud.folder / name).write_text(f'#!/bin/bash\n{body}\n')
            (cloud.folder / name).chmod(0o755)
        environment = os.environ | {'PATH': f'{cloud.folder}:{os.environ["PATH"]}', 'SLURM_JOB_ID': '17'}
        environment['SLURM_RESTART_COUNT'] = str(count)
        done = subprocess.run(['bash', job], env=environment, capture_output=True, text=True)
        assert done.returncode == status and (done.stdout == 'requeue 17\n') == again
    refused = cloud.launch('slurm.sh', '--nodes=2', '--gpus=8', *TRAINING, plan_status=1, status=1)
    assert 'nothing was queued' in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ('script', 'arguments', 'words'),
    [
        ('tpu_vm.sh', ('fly', *SLICE), 'fly: found no such verb'),
        ('tpu_vm.sh', ('create', '--name=a'), '--zone: found nothing'),
        ('tpu_vm.sh', ('create', *SLICE[:2], '--type=v5'), '--type=v5: found no number'),
        ('tpu_vm.sh', ('create', *SLICE[:2], '--type=v7-8'), '--type=v7-8: found an unknown kind'),
        ('tpu_vm.sh', ('create', *SLICE, '--price=cheap'), '--price=cheap: found no number'),
        ('tpu_vm.sh', ('create', *SLICE, '--hours=a day'), '--hours=a day: found no number'),
        ('tpu_vm.sh', ('create', *SLICE, '--prize=1'), '--prize=1: found an unknown option'),
        ('tpu_vm.sh', ('train', *SLICE), 'found no arguments of bertjax'),
        (
            'gke_jobset.sh',
            ('apply', '--name=a', '--image=b', '--accelerator=c', '--topology=3x3', *TRAINING),
            '--topology=3x3: found 9',
        ),
        ('slurm.sh', ('--nodes=two', '--gpus=8', *TRAINING), '--nodes=two: found no whole number'),
        ('slurm.sh', ('--nodes=2', *TRAINING), '--gpus: found nothing'),
        ('local_hosts.sh', ('two',), 'two: found no number of processes'),
    ],
)
def test_mistakes_are_said_before_anything_is_called(cloud: Cloud, script: str, arguments: tuple, words: str):
    done = cloud.launch(script, *arguments, status=2)
    assert done.stderr.strip().splitlines()[-1].startswith(f'error: {words}'), done.stderr
    assert not cloud.calls


@pytest.mark.slow
@pytest.mark.parametrize('script', ['tpu_vm.sh', 'gke_jobset.sh', 'slurm.sh', 'local_hosts.sh'])
def test_help_is_the_head_of_the_file(cloud: Cloud, script: str):
    said = cloud.launch(script, '--help').stdout
    assert f'launch/{script}' in said and '#' not in said and len(said.splitlines()) > 4


@pytest.mark.slow
def test_shellcheck_has_nothing_to_say():
    checker = shutil.which('shellcheck') or pytest.skip('no shellcheck: of the extra test, or of the system')
    scripts = sorted((REPOSITORY / 'launch').glob('*.sh'))
    done = subprocess.run([checker, '-x', '-P', REPOSITORY / 'launch', *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
