"""Pre-training steps on one GPU in bfloat16, compared with transformers with torch.compile and SDPA.

    bash benchmarks/gpu.sh

This command sets the environment variables and runs the script. The script first compares the GPU with the CPU: each
attention implementation and its gradients, and the losses of the first steps of a small model. Then it times these
rows, the most important first, and prints and writes each row when it is finished:

    BERT-large at S=128 and S=512; packed rows of 512 (of --corpus, else random ids); BERT-base at S=128

A row has the median step time, the sequences per second and their goal, MFU, the sequences per second of transformers,
and the ratio of both rates. bertjax and transformers run in turn. If transformers cannot run, its column is empty, and
a line gives the reason. After --seconds, no further row starts.

    python benchmarks/gpu_step.py --try_out

tests the script with tiny models on any device.
"""

import functools
import gc
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from gpu_checks import check_attention, check_losses
from gpu_training import Ours, Row
from processor import computes_bfloat16

from bertjax.files.atomic import write_atomic
from bertjax.model.config import train_flops_per_sequence
from bertjax.parallel.devices import claim_devices

_TRY_OUT = flags.DEFINE_bool('try_out', False, 'Run tiny models, two steps of each.')
_CORPUS = flags.DEFINE_string('corpus', '', 'See config.corpus; for the packed row. Default: random ids.')
_TOKENIZER = flags.DEFINE_string('tokenizer', '', 'See config.tokenizer; for --corpus.')
_STEPS = flags.DEFINE_integer('steps', 10, 'The number of timed steps.')
_SECONDS = flags.DEFINE_float('seconds', 500, 'The time in seconds after which no further row starts.')
_ATTENTION = flags.DEFINE_string('attention', 'auto', 'See config.model.attention.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'See config.model.scan_layers.')
_PEER = flags.DEFINE_bool('peer', True, 'Also run transformers.')

PEAK = 989e12  # FLOP/s of an H200, dense bfloat16: half of the value with sparsity in NVIDIA's datasheet


ROWS = (
    Row('large', 128, 384, 2050),
    Row('large', 512, 96, 485),
    Row('large', 512, 96, 1021, packed=True),
    Row('base', 128, 768, 6400),
)
TINY = (Row('tiny', 64, 4, 1), Row('tiny', 64, 4, 1, packed=True))


def peer_of(row: Row, batch: Mapping[str, np.ndarray]) -> tuple[Callable[[], float] | None, str]:
    """Returns (function that runs a training step of transformers, ''), or (None, the reason why it cannot run)."""
    if not _PEER.value:
        return None, '--nopeer'
    try:
        from peers import pretraining as peer
    except (ImportError, OSError) as error:  # OSError: missing CUDA libraries
        return None, f'{error}: see the comment in benchmarks/gpu.sh'
    device = 'cpu' if jax.devices()[0].platform == 'cpu' else 'cuda'
    reason = peer.missing_device(device)
    if reason:
        return None, f'{reason}: see the comment in benchmarks/gpu.sh'
    on_gpu = device == 'cuda'
    step = peer.make_step(row.size, device, compiled=on_gpu, autocast=on_gpu or computes_bfloat16())
    return functools.partial(step, peer.model_inputs(batch, device)), ''


def timed(steps: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Returns the seconds of each step; runs the functions in turn, after two steps of warm-up each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(count + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if i >= 2:
                times[name].append(time.perf_counter() - began)
    return times


def measure(row: Row, unpacked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Times the steps of a row, and returns the figures.

    Args:
      row: The row.
      unpacked: The figures of the unpacked row of the same shape, or None if they were not measured. A packed row is
        compared with transformers on the unpacked row.
    """
    ours = Ours(
        row,
        jax.devices(),
        attention=_ATTENTION.value,
        scan_layers=_SCAN.value,
        corpus=_CORPUS.value,
        tokenizer=_TOKENIZER.value,
    )
    steps: dict[str, Callable[[], Any]] = {'ours': ours.step}
    peer, reason = (None, '') if row.packed else peer_of(row, ours.batch)
    if peer:
        steps['theirs'] = peer
    times = timed(steps, 2 if _TRY_OUT.value else _STEPS.value)
    step = statistics.median(times['ours'])
    rate = ours.sequences / step
    flops = row.rows * train_flops_per_sequence(ours.config, row.seq_len, row.predictions)
    theirs = row.rows / statistics.median(times['theirs']) if peer else None
    if row.packed and unpacked:  # transformers pads each sequence to a full row
        theirs, reason = unpacked['peer_sequences_per_s'], unpacked['no_peer']
    return {
        'row': str(row),
        'rows': row.rows,
        'step_s': step,
        'fastest_s': min(times['ours']),
        'sequences_per_s': rate,
        'goal': row.goal,
        'mfu': flops / step / PEAK,
        'peer_sequences_per_s': theirs,
        'ratio': rate / theirs if theirs else None,
        'no_peer': reason,
        'compiling_s': ours.compiling,
        'attention': ours.attention,
        'text': 'real' if row.packed and _CORPUS.value else 'made up',
    }


def format_row(figures: Mapping[str, Any]) -> str:
    theirs = f'{figures["peer_sequences_per_s"]:9,.0f} {figures["ratio"]:6.2f}' if figures['ratio'] else ' ' * 16
    return (
        f'{figures["row"]:<22} {1e3 * figures["step_s"]:9.1f} {figures["sequences_per_s"]:12,.0f} '
        f'{figures["goal"]:7,.0f} {figures["mfu"]:7.1%} {theirs}'
    )


def versions() -> str:
    device = jax.devices()[0]
    names = [
        f'{device.device_kind} ({device.platform})',
        f'Python {platform.python_version()}',
        f'jax {jax.__version__}',
    ]
    try:
        from peers import pretraining as peer

        names.append(peer.versions())
    except (ImportError, OSError):
        names.append('no torch or transformers')
    return ', '.join(names)


def main(argv: list[str]) -> None:
    del argv
    began = time.perf_counter()
    logging.set_verbosity(logging.WARNING)
    claim_devices()
    if jax.default_backend() != 'gpu' and not _TRY_OUT.value:
        raise app.UsageError(
            f'JAX finds no GPU, only {jax.devices()[0].device_kind}: install jax[cuda13], or use --try_out'
        )
    report: dict[str, Any] = {'versions': versions(), 'xla_flags': os.environ.get('XLA_FLAGS', ''), 'rows': []}
    out = pathlib.Path(os.environ['OUT']) / 'gpu.json' if os.environ.get('OUT') else None
    print(f'{report["versions"]}\nXLA_FLAGS={report["xla_flags"]}', flush=True)
    report['checks'] = check_attention() + check_losses()
    print('\n'.join(report['checks']), flush=True)
    print(
        f'\n{"":<22} {"ms a step":>9} {"sequences/s":>12} {"goal":>7} {"MFU":>7} {"peer":>9} {"ratio":>6}', flush=True
    )
    unpacked: dict[tuple[str, int], dict[str, Any]] = {}
    for row in TINY if _TRY_OUT.value else ROWS:
        if time.perf_counter() - began > _SECONDS.value:
            print(f'{row}: skipped after {_SECONDS.value:.0f} s', flush=True)
            continue
        figures = measure(row, unpacked.get((row.size, row.seq_len)))
        unpacked.setdefault((row.size, row.seq_len), figures)
        report['rows'].append(figures)
        print(format_row(figures), flush=True)
        if out:
            write_atomic(out, json.dumps(report, indent=2) + '\n')
        gc.collect()  # frees the arrays of this row before the next one
    for reason in {figures['no_peer'] for figures in report['rows']} - {''}:
        print(f'no peer: {reason}')
    for figures in report['rows']:
        print(f'{figures["row"]}: {figures["attention"]}; compiled in {figures["compiling_s"]:.0f} s')
    print(f'{time.perf_counter() - began:.0f} s in all')


if __name__ == '__main__':
    app.run(main)
