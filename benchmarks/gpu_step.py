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

import dataclasses
import gc
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from batches import random_batch

from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.experiment.examples import StoreExamples
from bertjax.experiment.pretraining import build_pretraining_setup
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.experiment.text import WeightedStore
from bertjax.files.atomic import write_atomic
from bertjax.model.attention import cudnn, dot_product, fused_gpu
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import describe_attention
from bertjax.model.config import train_flops_per_sequence
from bertjax.model.dropout import Dropout
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.recipe import pretraining_config
from bertjax.text.tokenizer import load_tokenizer

_TRY_OUT = flags.DEFINE_bool('try_out', False, 'Tiny models, two steps of each.')
_CORPUS = flags.DEFINE_string('corpus', '', 'As config.corpus, for the packed row; made up without.')
_TOKENIZER = flags.DEFINE_string('tokenizer', '', 'As config.tokenizer, with --corpus.')
_STEPS = flags.DEFINE_integer('steps', 10, 'Timed steps of each.')
_SECONDS = flags.DEFINE_float('seconds', 500, 'After so many no further row is begun.')
_ATTENTION = flags.DEFINE_string('attention', 'auto', 'As config.model.attention.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'As config.model.scan_layers.')
_PEER = flags.DEFINE_bool('peer', True, 'Run transformers, too.')

PEAK = 989e12  # FLOP/s of an H200 in bfloat16 without sparsity: NVIDIA's datasheet of the H200 has twice that, with it


@dataclasses.dataclass(frozen=True)
class Row:
    """What is measured.

    Attributes:
      size: of `SIZES`.
      seq_len: S.
      rows: of a step: some 49,000 positions, of base twice as many, which with the peer's fit an H200's memory.
      goal: sequences a second.
      packed: rows hold several sequences.
    """

    size: str
    seq_len: int
    rows: int
    goal: float
    packed: bool = False

    @property
    def predictions(self) -> int:
        return round(0.156 * self.seq_len) if self.seq_len > 128 else round(0.15 * self.seq_len) + 1

    def __str__(self) -> str:
        return f'{self.size}, S={self.seq_len}{", packed" if self.packed else ""}'


ROWS = (
    Row('large', 128, 384, 2050),
    Row('large', 512, 96, 485),
    Row('large', 512, 96, 1021, packed=True),
    Row('base', 128, 768, 6400),
)
TINY = (Row('tiny', 64, 4, 1), Row('tiny', 64, 4, 1, packed=True))


class Ours:
    """One training of ours, on the first of `devices`. `sequences` is how many a step has."""

    def __init__(self, row: Row, devices: list[jax.Device], dtype: str = 'bfloat16', attention: str = 'auto'):
        config = pretraining_config(row.size, seq_len=row.seq_len, batch_size=row.rows, packing=row.packed)
        config.max_predictions = row.predictions
        config.model.update(dtype=dtype, attention=attention, scan_layers=_SCAN.value)
        tokenizer = load_tokenizer(_TOKENIZER.value) if _CORPUS.value else None
        vocab_size = tokenizer.vocab_size if tokenizer else config.vocab.size
        settings, mesh = pretraining_settings(config), make_mesh(config.mesh, devices[:1])
        self.config = settings.model(vocab_size)
        setup = build_pretraining_setup(settings, self.config, mesh)
        phase = settings.phases(1000)[0]
        self.batch = random_batch(row.rows, row.seq_len, row.predictions, vocab_size, 2 if row.packed else 1)
        if row.packed and tokenizer:
            with tempfile.TemporaryDirectory() as folder:
                build_store(_CORPUS.value, folder, tokenizer, progress=False)
                store = WeightedStore(open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint), 1.0)
                examples = StoreExamples(settings, [store], tokenizer, None).get(settings.first_shape, 'train', 0)
                self.batch = examples.batch(np.arange(row.rows))
        self.sequences = int((self.batch['nsp_weights'] > 0).sum())
        with mesh_context(mesh):
            self._state = setup.create(seed=0)
            self.attention = describe_attention(self.config, row.rows, row.seq_len, row.packed)
        self._batch = jax.device_put(self.batch, batch_sharding(mesh))
        self._numbers = jax.device_put((np.uint32(0), np.float32(phase.learning_rate), np.uint32(0)), replicated(mesh))
        began = time.perf_counter()
        self._program = setup.compile(phase, phase.batches)[phase.seq_len]
        self.compiling = time.perf_counter() - began

    def step(self) -> float:
        """Takes one, waits for it, and returns the loss of masked positions."""
        self._state, metrics = self._program(self._state, self._batch, *self._numbers)
        jax.block_until_ready((self._state, metrics))
        total, weight = metrics['sums']['mlm_loss']
        return float(total) / float(weight)


def check_attention() -> list[str]:
    """Every attention of this device beside the plain form on the CPU in float32: a line for each.

    Raises:
      SystemExit: one is further from it than rounding to bfloat16 explains.
    """
    rng, lines = np.random.default_rng(0), []
    B, S, H, K = 4, 256, 4, 64
    arrays = [rng.standard_normal((B, S, H, K)).astype(np.float32) for _ in range(4)]
    key_mask = (np.arange(S) < np.array([S, 200, 130, S])[:, None]).astype(np.int32)
    sequences = np.minimum(np.arange(S) // 90, 2).astype(np.int32)[None].repeat(B, 0)
    dropout = Dropout(jnp.uint32(7), jnp.arange(B, dtype=jnp.uint32))
    cases = {'': (False, 0.0), ', dropout': (False, 0.1), ', dropout, packed': (True, 0.1)}

    def all_of(attend: Callable, packed: bool, rate: float, device: jax.Device, dtype: Any) -> list[np.ndarray]:
        mask = AttentionMask(jnp.asarray(key_mask), jnp.asarray(sequences) if packed else None)

        def run(query, key, value, cotangent):
            function = lambda *x: attend(*x, mask, dropout_rate=rate, dropout=dropout if rate else None)  # noqa: E731
            output, pull = jax.vjp(function, query, key, value)
            return output, *pull(cotangent)

        with jax.default_device(device):
            given = [jnp.asarray(x, dtype) for x in (*arrays[:3], arrays[3] * key_mask[:, :, None, None])]
            return [np.asarray(x, np.float32) for x in jax.jit(run)(*given)]

    cpu = jax.local_devices(backend='cpu')[0]
    shape = jax.ShapeDtypeStruct((B, S, H, K), jnp.bfloat16)
    for words, (packed, rate) in cases.items():
        exact = all_of(dot_product.attend, packed, rate, cpu, jnp.float32)
        mask = AttentionMask(key_mask, sequences if packed else None)
        for name, one in {'dot_product': dot_product, 'cudnn': cudnn, 'fused_gpu': fused_gpu}.items():
            if one.supports(shape, shape, mask, rate):
                continue
            found = all_of(one.attend, packed, rate, jax.devices()[0], jnp.bfloat16)
            far = [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(found, exact, strict=True)]
            lines.append(f'{name}{words}: {max(far):.4f} of the norm from float32 on the CPU')
            if not max(far) < 0.02:
                raise SystemExit(f'wrong attention: {lines[-1]}')
    return lines


def check_losses() -> list[str]:
    """The losses of a small model's first three steps beside those on the CPU in float32, which drops the same values.

    Raises:
      SystemExit: they differ by more than rounding to bfloat16 explains.
    """
    row = Row('tiny', 128, 16, 0)
    here, there = (
        [side.step() for _ in range(3)]
        for side in (Ours(row, jax.devices()), Ours(row, jax.local_devices(backend='cpu'), 'float32', 'dot_product'))
    )
    text = ', '.join(f'{one:.4f} for {other:.4f}' for one, other in zip(here, there, strict=True))
    if not np.allclose(here, there, rtol=5e-3):
        raise SystemExit(f'wrong losses: {text}')
    return [f'losses of three steps: {text}']


def peer_of(row: Row, batch: Mapping[str, np.ndarray]) -> tuple[Callable[[], float] | None, str]:
    """A function that takes a step of transformers', or None and why."""
    if not _PEER.value:
        return None, '--nopeer'
    try:
        from peers import pretraining as peer
    except ImportError as error:
        return None, f'{error}: see the head of benchmarks/gpu.sh'
    device = 'cpu' if jax.devices()[0].platform == 'cpu' else 'cuda'
    reason = peer.why_not(device)
    if reason:
        return None, f'{reason}: see the head of benchmarks/gpu.sh'
    return peer.make_step(row.size, batch, device, compiled=device == 'cuda'), ''


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
    ours = Ours(row, jax.devices(), attention=_ATTENTION.value)
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
    except ImportError:
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
