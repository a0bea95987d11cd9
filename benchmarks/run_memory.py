"""The most memory of whole runs on one device that read a checkpoint of another mesh: evaluate, export, fine-tune.

    python benchmarks/run_memory.py

Trains a model for one step on eight virtual devices of the CPU, its state split over all of them; tunes it for some
steps to made records there; then runs each verb on one device in a process of its own. Prints the peak of that
process's resident memory beyond that of the same run with a model of next to no parameters, as a share of the
parameters, and of all of the state where that is held. On a CPU devices have their memory in common with the host:
what is there twice, counts twice.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from absl import app, flags

_LAYERS = flags.DEFINE_integer('layers', 12, 'Blocks of the model.')
_WIDTH = flags.DEFINE_integer('width', 768, 'Its width; heads have 64.')
_ONLY = flags.DEFINE_list('only', ['evaluate', 'hf', 'orbax', 'finetune'], 'What is measured.')
_FOLDER = flags.DEFINE_string('folder', None, 'Where workdirs are, and are kept; the default is a temporary folder.')
_RECORDS = 32
_MESH = '--config.mesh.preset=fsdp'


def _peak(arguments: Sequence[str], *, devices: int = 1) -> int:
    """Bytes that a run of the program had in memory at most."""
    environment = os.environ | {
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    }
    command = [sys.executable, '-m', 'bertjax.main', *arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f'{" ".join(command)}\n{said.read().decode()[-3000:]}')
    return used.ru_maxrss * 1024


def _write_records(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    rows = (
        f'{draw.choice(("yes", "no"))},{" ".join(draw.choices(("for", "while", "try"), k=9))}' for _ in range(_RECORDS)
    )
    text = '\n'.join(['label,text', *rows]) + '\n'
    for name in ('train.csv', 'dev.csv'):
        (folder / name).write_text(text)


def _peaks(folder: pathlib.Path, layers: int, width: int) -> tuple[dict[str, int], int]:
    """Of one model: bytes by verb, and the bytes of its parameters."""
    trained, tuned, again = folder / 'trained', folder / 'tuned', folder / 'again'
    model = [
        f'--config.model.{name}={value}'
        for name, value in {
            'num_layers': layers,
            'width': width,
            'mlp_dim': 4 * width,
            'num_heads': width // 64,
        }.items()
    ]
    pretrain = ['--config=configs/pretrain_tiny.py:adam', f'--workdir={trained}', *model]
    few = ['--config.batch_size=8', '--config.steps=1', '--config.eval_examples=8', '--config.export=False']
    if not (trained / 'checkpoints').exists():
        _peak([*pretrain, *few, _MESH], devices=8)
    _write_records(folder / 'records')
    export = [*pretrain, '--config.run=export', '--config.export_formats']
    task = ['--config=configs/classify.py', f'--config.data={folder / "records"}', '--config.seq_len=32']
    tune = ['--config.batch_size=8', '--config.epochs=1', f'--config.init={trained / "export" / "hf"}']
    found = {'hf': _peak([*export[:-1], f'{export[-1]}=hf'])}
    if 'orbax' in _ONLY.value:
        found['orbax'] = _peak([*export[:-1], f'{export[-1]}=orbax'])
    if 'evaluate' in _ONLY.value:
        if not (tuned / 'checkpoints').exists():
            _peak([*task, *tune, f'--workdir={tuned}', '--config.export=False', _MESH], devices=8)
        found['evaluate'] = _peak([*task, f'--workdir={tuned}', '--config.run=evaluate'])
    if 'finetune' in _ONLY.value:
        found['finetune'] = _peak([*task, *tune, f'--workdir={again}', '--config.export=False'])
    return found, (trained / 'export' / 'hf' / 'model.safetensors').stat().st_size


def main(argv: Sequence[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(_FOLDER.value or temporary)
        small, _ = _peaks(folder / 'small', 1, 64)
        found, size = _peaks(folder / 'large', _LAYERS.value, _WIDTH.value)
    print(f'{size / 4e6:.0f} million parameters, {size / 1e6:.0f} MB')
    for verb, peak in found.items():
        beyond = (peak - small[verb]) / size
        of_state = f', {beyond / 3:.2f} times parameters and moments' if verb == 'finetune' else ''
        print(f'{verb}: at most {peak / 1e6:.0f} MB, {beyond:.2f} times the parameters beyond a small model{of_state}')


if __name__ == '__main__':
    app.run(main)
