"""Input pipeline: bertjax's examples compared with transformers' masking collator, in one thread.

    python benchmarks/input_pipeline.py --corpus='texts/*.txt' --tokenizer=vocab.txt

bertjax makes pairs, truncates, builds rows and masks from the token store, at S=128 and S=512, packed and unpacked.
DataCollatorForLanguageModeling (with numpy) only masks finished rows, which is less than half of the work. Both run in
turn. The rates are per second of CPU time, which other work on the machine hardly affects. Needs the extra `bench`.

At the end, the script measures a loader of slow batches, as from a slow disk: making a batch takes --late seconds, a
step takes a quarter of this time, and one, two or four threads make the batches.
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
from bertjax.data.packing import PackedExamples
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding
from bertjax.text.tokenizer import load_tokenizer

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'See config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'See config.tokenizer.', required=True)
_BATCH = flags.DEFINE_integer('batch_size', 256, 'The number of rows per batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'The number of rounds.')
_SECONDS = flags.DEFINE_float('seconds', 0.4, 'The approximate seconds of a round.')
_LATE = flags.DEFINE_float('late', 0.02, 'The seconds that a slow batch sleeps.')
_STEPS = 150  # the number of steps of the loop over slow batches
# The rows per second of BERT-base at S=128 on 8 TPU v6e chips at half of their peak of 918 TFLOP/s each. The blocks
# need 6 · 85.6e6 · 128 FLOPs per row, and attention and head 7 % more.
_DEMAND = 52_000


def rate(make: Callable[[int], object], rows: int) -> float:
    """Returns the number of rows per second of CPU time of `make(i)`, which makes batch i of `rows` rows."""
    began, i = time.process_time(), 0
    while time.process_time() - began < _SECONDS.value:
        make(i)
        i += 1
    return i * rows / (time.process_time() - began)


class SlowExamples:
    """Examples whose batches sleep before they are returned."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns {'number': the indices as int32 [B]}; `indices` is int64 [B]."""
        time.sleep(_LATE.value)
        return {'number': indices.astype(np.int32)}


def waiting_share(threads: int) -> float:
    """Returns the fraction of the time for which a loop waits for slow batches; checks the order of the batches."""
    sharding = batch_sharding(make_mesh({'data': -1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1]))
    loader = Loader(SlowExamples(), first=0, batch_size=8, sharding=sharding, threads=threads)
    waited, began = 0.0, time.perf_counter()
    for step in range(_STEPS):
        start = time.perf_counter()
        batch = next(loader)
        waited += time.perf_counter() - start
        if batch.first != 8 * step or int(batch.arrays['number'][0]) != batch.first:
            raise AssertionError(f'batch {step} has the examples from {batch.first} on')
        time.sleep(_LATE.value / 4)
    took = time.perf_counter() - began
    loader.close()
    return waited / took


def main(argv: list[str]) -> None:
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
            finished_rows = [{'input_ids': row} for row in examples.batch(np.arange(rows))['input_ids']]
            if not packed:
                makers[f'S={seq_len}, collator'] = lambda i, r=finished_rows: collator(r)
        rates: dict[str, list[float]] = {name: [] for name in makers}
        for make in makers.values():
            make(0)
        for _ in range(_ROUNDS.value):
            for name, make in makers.items():
                rates[name].append(rate(make, rows))
    print(
        f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, '
        f'transformers {transformers.__version__}; {rows} rows a batch, median of {_ROUNDS.value}'
    )
    for name, own_rates in rates.items():
        peer = rates.get(name.partition(',')[0].replace(' packed', '') + ', collator')
        median = statistics.median(own_rates)
        line = f'{name:>20}: {median:9,.0f} rows/s of one core ({min(own_rates):,.0f} to {max(own_rates):,.0f})'
        if peer is not own_rates:
            ratio = statistics.median(mine / other for mine, other in zip(own_rates, peer, strict=True))
            line += f'; {ratio:5.2f} times the collator'
        if name.startswith('S=128,') and peer is not own_rates:
            line += f'; {_DEMAND / median:.0%} of a core feeds a host of 8 TPU v6e'
        print(line)
    waits = ', '.join(f'{n}: {waiting_share(n):.0%}' for n in (1, 2, 4))
    print(
        f'{_STEPS} batches of {_LATE.value:g} s, steps of a quarter of that; share of waiting with n threads: {waits}'
    )


if __name__ == '__main__':
    app.run(main)
