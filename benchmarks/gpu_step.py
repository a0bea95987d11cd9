"""Pre-training steps on one GPU, in bfloat16 with dropout, beside transformers with torch.compile and SDPA, in turn.

    bash benchmarks/gpu.sh

which sets what has to be set before. First it is looked whether the GPU computes what the CPU does: each attention and
its gradients, and the losses of a small model's first steps. Then the rows, the most important first, each printed and
written when it is there:

    BERT-large at S=128 and S=512, full rows, packed rows of 512 (of --corpus, else made up), BERT-base at S=128

with the median step of each, sequences a second, model FLOPs by the peak, the ratio of the medians, and what was hoped
for. Where the peer cannot run its column is empty, and one line says why. After --seconds no further row is begun.

    python benchmarks/gpu_step.py --try_out

runs tiny models on whatever device there is, to see that all of it works.
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

_TRY_OUT = flags.DEFINE_bool('try_out', False, 'Tiny models, two steps of each.')
_CORPUS = flags.DEFINE_string('corpus', '', 'As config.corpus, for the packed row; made up without.')
_TOKENIZER = flags.DEFINE_string('tokenizer', '', 'As config.tokenizer, with --corpus.')
_STEPS = flags.DEFINE_integer('steps', 10, 'Timed steps of each.')
_SECONDS = flags.DEFINE_float('seconds', 500, 'After so many no further row is begun.')
_ATTENTION = flags.DEFINE_string('attention', 'auto', 'As config.model.attention.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'As config.model.scan_layers.')
_PEER = flags.DEFINE_bool('peer', True, 'Run transformers, too.')

PEAK = 989e12  # FLOP/s of an H200 in bfloat16 without sparsity: NVIDIA's datasheet of the H200 has twice that, with it


ROWS = (
    Row('large', 128, 384, 2050),
    Row('large', 512, 96, 485),
    Row('large', 512, 96, 1021, packed=True),
    Row('base', 128, 768, 6400),
)
TINY = (Row('tiny', 64, 4, 1), Row('tiny', 64, 4, 1, packed=True))


def peer_of(row: Row, batch: Mapping[str, np.ndarray]) -> tuple[Callable[[], float] | None, str]:
    """A function that takes a step of transformers', or None and why."""
    if not _PEER.value:
        return None, '--nopeer'
    try:
        from peers import pretraining as peer
    except (ImportError, OSError) as error:  # OSError: CUDA libraries that are not there
        return None, f'{error}: see the head of benchmarks/gpu.sh'
    device = 'cpu' if jax.devices()[0].platform == 'cpu' else 'cuda'
    reason = peer.why_not(device)
    if reason:
        return None, f'{reason}: see the head of benchmarks/gpu.sh'
    on_gpu = device == 'cuda'
    step = peer.make_step(row.size, device, compiled=on_gpu, autocast=on_gpu or computes_bfloat16())
    return functools.partial(step, peer.given(batch, device)), ''


def timed(steps: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Seconds of each step, the functions in turn, two of each before."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(count + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if i >= 2:
                times[name].append(time.perf_counter() - began)
    return times


def measured(row: Row, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """The figures of a row; `earlier` are those of the same shape, not packed, of which a row is a sequence."""
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
    if row.packed and earlier:  # which would pad each sequence to a row of its own
        theirs, reason = earlier['peer_sequences_per_s'], earlier['no_peer']
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


def line(found: Mapping[str, Any]) -> str:
    """A row of the table."""
    theirs = f'{found["peer_sequences_per_s"]:9,.0f} {found["ratio"]:6.2f}' if found['ratio'] else ' ' * 16
    return (
        f'{found["row"]:<22} {1e3 * found["step_s"]:9.1f} {found["sequences_per_s"]:12,.0f} {found["goal"]:7,.0f} '
        f'{found["mfu"]:7.1%} {theirs}'
    )


def versions() -> str:
    """Device and libraries."""
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
    """Checks, measures, prints and writes."""
    del argv
    began = time.perf_counter()
    logging.set_verbosity(logging.WARNING)
    claim_devices()
    if jax.default_backend() != 'gpu' and not _TRY_OUT.value:
        raise app.UsageError(
            f'JAX sees no GPU here, but {jax.devices()[0].device_kind}: install jax[cuda13], or --try_out'
        )
    report: dict[str, Any] = {'versions': versions(), 'xla_flags': os.environ.get('XLA_FLAGS', ''), 'rows': []}
    out = pathlib.Path(os.environ['OUT']) / 'gpu.json' if os.environ.get('OUT') else None
    print(f'{report["versions"]}\nXLA_FLAGS={report["xla_flags"]}', flush=True)
    report['checks'] = check_attention() + check_losses()
    print('\n'.join(report['checks']), flush=True)
    print(
        f'\n{"":<22} {"ms a step":>9} {"sequences/s":>12} {"goal":>7} {"MFU":>7} {"peer":>9} {"ratio":>6}', flush=True
    )
    plain: dict[tuple[str, int], dict[str, Any]] = {}
    for row in TINY if _TRY_OUT.value else ROWS:
        if time.perf_counter() - began > _SECONDS.value:
            print(f'{row}: left out, {_SECONDS.value:.0f} s are over', flush=True)
            continue
        found = measured(row, plain.get((row.size, row.seq_len)))
        plain.setdefault((row.size, row.seq_len), found)
        report['rows'].append(found)
        print(line(found), flush=True)
        if out:
            write_atomic(out, json.dumps(report, indent=2) + '\n')
        gc.collect()  # the arrays of this row, before those of the next
    for reason in {found['no_peer'] for found in report['rows']} - {''}:
        print(f'no peer: {reason}')
    for found in report['rows']:
        print(f'{found["row"]}: {found["attention"]}; compiled in {found["compiling_s"]:.0f} s')
    print(f'{time.perf_counter() - began:.0f} s in all')


if __name__ == '__main__':
    app.run(main)
