"""Fake gcloud, kubectl and sbatch programs, and the calls that a launcher makes of them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
TRAINING = ('--', '--config=configs/pretrain_base.py', '--workdir=gs://bucket/a run', "--config.corpus='*.txt'")
SLICE = ('--name=bert', '--zone=us-west4-a', '--type=v5litepod-16')


class Cloud:
    """The folder of the fake programs; see fake.py."""

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

    def add_programs(self, **programs: str) -> None:
        """Adds fake programs to the folder: name -> bash script."""
        for name, body in programs.items():
            (self.folder / name).write_text(f'#!/bin/bash\n{body}\n')
            (self.folder / name).chmod(0o755)

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
        """The calls of gcloud as one word each, without queries of the state."""
        words = {
            'create': 'create',
            'delete': 'delete',
            'scp': 'copy',
            'uv pip': 'install',
            'sudo mount 10.0.0.2:/share /mnt/shared': 'mount',
            'nohup': 'train',
            'tail': 'follow',
        }
        lines = [' '.join(call) for call in self.calls]
        lines = [line for line in lines if not any(word in line for word in ('describe', 'training=', 'ended='))]
        return [next(step for word, step in reversed(words.items()) if word in line) for line in lines]

    @property
    def exists(self) -> bool:
        return json.loads((self.folder / 'plan').read_text()).get('exists', False)
