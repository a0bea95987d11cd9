"""Making batches: bertjax's examples beside transformers' masking collator, in one process, on one thread each.

    python benchmarks/input_pipeline.py --corpus='texts/*.txt' --tokenizer=vocab.txt

Ours pairs, truncates, lays out and masks from the token store; theirs masks rows that are laid out already
(DataCollatorForLanguageModeling with numpy), which is the smaller half of the work. Needs the extra `bench`.
"""

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
import transformers
from absl import app, flags

from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.text.tokenizer import load_tokenizer

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'As config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'As config.tokenizer.', required=True)
_BATCH = flags.DEFINE_integer('batch_size', 256, 'Rows of a batch.')


def rate(make: Callable[[int], object], rows: int, seconds: float = 5.0) -> float:
    """Rows a second of `make(i)`, called for about `seconds`."""
    make(0)
    start, i = time.perf_counter(), 1
    while time.perf_counter() - start < seconds:
        make(i)
        i += 1
    return (i - 1) * rows / (time.perf_counter() - start)


def main(argv: list[str]) -> None:
    """Prints both rates for each masking unit of ours, and their ratio."""
    del argv
    rows, tokenizer = _BATCH.value, load_tokenizer(_TOKENIZER.value)
    with tempfile.TemporaryDirectory() as folder:
        build_store(_CORPUS.value, folder, tokenizer, progress=False)
        split = open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint).split('train')
        tokenizer.save(os.path.join(folder, 'tokenizer'))
        theirs = transformers.AutoTokenizer.from_pretrained(os.path.join(folder, 'tokenizer'))
        collator = transformers.DataCollatorForLanguageModeling(theirs, return_tensors='np')
        for unit in ('token', 'word', 'span'):
            examples = PretrainingExamples(
                split, tokenizer, seq_len=128, max_predictions=20, pairs=PairOptions(plans=1),
                masking=MaskOptions(unit=unit), seed=0, phase=0, cache_dir=None,
            )  # fmt: skip
            mine = rate(lambda i, e=examples: e.batch(np.arange(i * rows, (i + 1) * rows)), rows)
            ids = examples.batch(np.arange(rows))['input_ids']
            laid_out = [{'input_ids': row} for row in ids]
            peer = rate(lambda i: collator(laid_out), rows)  # noqa: B023
            print(f'{unit:>5}: {mine:9,.0f} rows/s; collator {peer:9,.0f} rows/s (masks only); {mine / peer:.1f} times')


if __name__ == '__main__':
    app.run(main)
