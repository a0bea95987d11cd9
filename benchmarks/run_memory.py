"""Peak memory of runs on one device that read a checkpoint of another mesh: evaluate, export, fine-tune.

    python benchmarks/run_memory.py

The script pre-trains a model for one step on eight virtual CPU devices, with its state split over all devices, and
fine-tunes it there on synthetic records. It then runs each verb on one device in a new process. It prints the peak
resident memory of each process, minus the peak of the same run with a very small model, as a multiple of the size of
the parameters. For `finetune`, it also prints the multiple of the size of parameters and moments. CPU devices share the
memory of the host, so two copies count twice.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from absl import app, flags

_LAYERS = flags.DEFINE_integer('layers', 12, 'The number of blocks.')
_WIDTH = flags.DEFINE_integer('width', 768, 'The width of the model; heads have width 64.')
_ONLY = flags.DEFINE_list('only', ['evaluate', 'hf', 'orbax', 'finetune'], 'The verbs and export formats to measure.')
_FOLDER = flags.DEFINE_string('folder', None, 'The folder of the workdirs; default: a temporary folder.')
_RECORDS = 32
_MESH = '--config.mesh.preset=fsdp'


def _peak(arguments: Sequence[str], *, devices: int = 1) -> int:
    """Runs the program; returns its peak memory in bytes."""
    environment = os.environ | {
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    }
    command = [sys.executable, '-m', 'bertjax.main', *arguments]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f'{" ".join(command)}\n{output.read().decode()[-3000:]}')
    return usage.ru_maxrss * 1024


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
    """Returns the peak bytes of each verb for a model, and the bytes of its parameters."""
    pretrained, finetuned, finetuned_again = folder / 'trained', folder / 'tuned', folder / 'again'
    model = [
        f'--config.model.{name}={value}'
        for name, value in {
            'num_layers': layers,
            'width': width,
            'mlp_dim': 4 * width,
            'num_heads': width // 64,
        }.items()
    ]
    pretrain = ['--config=configs/pretrain_tiny.py:adam', f'--workdir={pretrained}', *model]
    short = ['--config.batch_size=8', '--config.steps=1', '--config.eval_examples=8', '--config.export=False']
    if not (pretrained / 'checkpoints').exists():
        _peak([*pretrain, *short, _MESH], devices=8)
    _write_records(folder / 'records')
    export = [*pretrain, '--config.run=export', '--config.export_formats']
    task = ['--config=configs/classify.py', f'--config.data={folder / "records"}', '--config.seq_len=32']
    tune = ['--config.batch_size=8', '--config.epochs=1', f'--config.init={pretrained / "export" / "hf"}']
    peaks = {'hf': _peak([*export[:-1], f'{export[-1]}=hf'])}
    if 'orbax' in _ONLY.value:
        peaks['orbax'] = _peak([*export[:-1], f'{export[-1]}=orbax'])
    if 'evaluate' in _ONLY.value:
        if not (finetuned / 'checkpoints').exists():
            _peak([*task, *tune, f'--workdir={finetuned}', '--config.export=False', _MESH], devices=8)
        peaks['evaluate'] = _peak([*task, f'--workdir={finetuned}', '--config.run=evaluate'])
    if 'finetune' in _ONLY.value:
        peaks['finetune'] = _peak([*task, *tune, f'--workdir={finetuned_again}', '--config.export=False'])
    return peaks, (pretrained / 'export' / 'hf' / 'model.safetensors').stat().st_size


def main(argv: Sequence[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(_FOLDER.value or temporary)
        small, _ = _peaks(folder / 'small', 1, 64)
        large, size = _peaks(folder / 'large', _LAYERS.value, _WIDTH.value)
    print(f'{size / 4e6:.0f} million parameters, {size / 1e6:.0f} MB')
    for verb, peak in large.items():
        beyond = (peak - small[verb]) / size
        of_state = f', {beyond / 3:.2f} times parameters and moments' if verb == 'finetune' else ''
        print(f'{verb}: peak {peak / 1e6:.0f} MB, {beyond:.2f} times the parameters beyond a small model{of_state}')


if __name__ == '__main__':
    app.run(main)
