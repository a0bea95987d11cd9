"""Features of texts from any trained model: one vector per text, or one per token.

    python -m bertjax.main --config=configs/extract.py --workdir=out/tiny --config.input=FILE

The model is in --workdir or in --config.init=PATH (any path that bertjax.load accepts). FILE has one text per line, or
it is JSON lines, a table (CSV, TSV) or Parquet with a column `text` (or --config.extract.field=FIELD). NAME is FILE
without its folder and suffixes. Row i of WORKDIR/features/NAME.npy belongs to text i:

    features = numpy.load('out/tiny/features/NAME.npy', mmap_mode='r')

With one vector per token, text i begins at row NAME.offsets.npy[i]. The formats are npy, safetensors, parquet (with the
extra `arrow`) and jsonl. After an interruption the same command continues. With --config.input=- the command reads
standard input. It then writes JSON lines to standard output, or to WORKDIR/features/stdin.FORMAT if
config.extract.format is set. See docs/models.md.

Arguments, as in --config=configs/extract.py:sentences

| argument  | meaning                                                                                          |
|-----------|--------------------------------------------------------------------------------------------------|
| sentences | vectors of length 1; the pooling of a sentence-transformers folder, else the mean                |
| last_four | the last four layers, concatenated, for each token (arXiv 1810.04805, table 7)                   |

Hardware: any; two CPU cores process a few hundred sentences per second with a model of 6 layers and width 384.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config, parse_argument


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, sentences=False, last_four=False)
    config = inference_config('extract')
    if args.sentences:
        config.extract.normalize = True
    if args.last_four:
        config.extract.layers, config.extract.combine, config.extract.pool = (-4, -3, -2, -1), 'concat', 'none'
    return config
