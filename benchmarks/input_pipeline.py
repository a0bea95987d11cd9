"""Making batches: bertjax's examples beside transformers' masking collator, in turn, in one process, a thread each.

    python benchmarks/input_pipeline.py --corpus='texts/*.txt' --tokenizer=vocab.txt

Ours pairs, truncates, lays out and masks from the token store, at S=128 and S=512, packed and not; theirs masks rows
that are laid out already (DataCollatorForLanguageModeling with numpy), which is the smaller half of the work. Rows are
counted by the time of the processor, so that other work on the machine does not count. Needs the extra `bench`.

At the end a loader whose batches come late, as from a slow disk: each sleeps for --late seconds, a step for a quarter
of that, and one to four threads make them. That shows what threads do where a batch waits; it needs no cores.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np
import transformers
from absl import app, flags

from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.data.loader import Loader
from bertjax.data.masking import UNITS, MaskOptions
from bertjax.data.packed import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding
from bertjax.text.tokenizer import load_tokenizer

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'As config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'As config.tokenizer.', required=True)
_BATCH = flags.DEFINE_integer('batch_size', 256, 'Rows of a batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'How often each is timed.')
_SECONDS = flags.DEFINE_float('seconds', 0.4, 'For about how long, each time.')
_LATE = flags.DEFINE_float('late', 0.02, 'Seconds that a batch of the last part sleeps.')
_STEPS = 150  # of it
# Rows of BERT-base at S=128 that 8 chips of TPU v6e take in a second at half of their peak of 918 TFLOP/s, with
# 6 · 85.6e6 · 128 operations a row for the blocks and 7 % of them more for attention and head.
_DEMAND = 52_000


def rate(make: Callable[[int], object], rows: int) -> float:
    """Rows that `make(i)` makes in a second of the processor."""
    began, i = time.process_time(), 0
    while time.process_time() - began < _SECONDS.value:
        make(i)
        i += 1
    return i * rows / (time.process_time() - began)


class Late:
    """Examples that take a while, in which their thread does nothing."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """int64 [B] -> the numbers."""
        time.sleep(_LATE.value)
        return {'number': indices.astype(np.int32)}


def share_waited(threads: int) -> float:
    """Of the time of a loop over late batches, that in which it waited for them; checks their order."""
    sharding = batch_sharding(make_mesh({'data': -1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1]))
    loader = Loader(Late(), first=0, batch_size=8, sharding=sharding, threads=threads)
    waited, began = 0.0, time.perf_counter()
    for step in range(_STEPS):
        asked = time.perf_counter()
        batch = next(loader)
        waited += time.perf_counter() - asked
        if batch.first != 8 * step or int(batch.arrays['number'][0]) != batch.first:
            raise AssertionError(f'batch {step} has the examples from {batch.first} on')
        time.sleep(_LATE.value / 4)
    took = time.perf_counter() - began
    loader.close()
    return waited / took


def main(argv: list[str]) -> None:
    """Prints the medians of both for each masking unit of ours, and what a host of TPUs would need."""
    del argv
    rows, tokenizer = _BATCH.value, load_tokenizer(_TOKENIZER.value)
    with tempfile.TemporaryDirectory() as folder:
        build_store(_CORPUS.value, folder, tokenizer, progress=False)
        split = open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint).split('train')
        tokenizer.save(os.path.join(folder, 'tokenizer'))
        theirs = transformers.AutoTokenizer.from_pretrained(os.path.join(folder, 'tokenizer'))
        collator = transformers.DataCollatorForLanguageModeling(theirs, return_tensors='np')
        makers: dict[str, Callable[[int], object]] = {}
        for seq_len, packed in ((128, False), (128, True), (512, False), (512, True)):
            for unit in UNITS:
                examples = PretrainingExamples(
                    split, tokenizer, seq_len=seq_len, max_predictions=round(0.156 * seq_len),
                    pairs=PairOptions(plans=1), masking=MaskOptions(unit=unit), seed=0, phase=0, cache_dir=None,
                )  # fmt: skip
                made = PackedExamples(examples) if packed else examples
                name = f'S={seq_len}{" packed" * packed}, {unit}'
                makers[name] = lambda i, e=made: e.batch(np.arange(i * rows, (i + 1) * rows))
            laid_out = [{'input_ids': row} for row in examples.batch(np.arange(rows))['input_ids']]
            if not packed:
                makers[f'S={seq_len}, collator'] = lambda i, r=laid_out: collator(r)
        found: dict[str, list[float]] = {name: [] for name in makers}
        for make in makers.values():
            make(0)
        for _ in range(_ROUNDS.value):
            for name, make in makers.items():
                found[name].append(rate(make, rows))
    print(
        f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, '
        f'transformers {transformers.__version__}; {rows} rows a batch, median of {_ROUNDS.value}'
    )
    for name, rates in found.items():
        peer = found.get(name.partition(',')[0].replace(' packed', '') + ', collator')
        median = statistics.median(rates)
        line = f'{name:>20}: {median:9,.0f} rows/s of one core ({min(rates):,.0f} to {max(rates):,.0f})'
        if peer is not rates:
            ratio = statistics.median(mine / other for mine, other in zip(rates, peer, strict=True))
            line += f'; {ratio:5.2f} times the collator'
        if name.startswith('S=128,') and peer is not rates:
            line += f'; {_DEMAND / median:.0%} of a core for a host of 8 TPU v6e'
        print(line)
    waits = ', '.join(f'with {n}: {share_waited(n):.0%}' for n in (1, 2, 4))
    print(
        f'{_STEPS} batches of {_LATE.value:g} s for steps of a quarter of that; threads, and share of waiting: {waits}'
    )


if __name__ == '__main__':
    app.run(main)
