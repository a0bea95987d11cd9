"""Features of texts from any trained model: one vector a text, or one a token.

    python -m bertjax.main --config=configs/extract.py --workdir=out/tiny --config.input=FILE

The model is that of --workdir, or any other: --config.init=PATH, as bertjax.load takes it. FILE has a text a line, or
JSON lines, a table (CSV, TSV) or Parquet with a column `text` (--config.extract.field=NAME names another). Row i of
WORKDIR/features/FILE.npy is the i-th text:

    features = numpy.load('out/tiny/features/FILE.npy', mmap_mode='r')

Killed, the same command goes on where it was. Formats: npy, safetensors, parquet (with the extra `arrow`), jsonl.
--config.input=- reads standard input, and writes the format that is named to WORKDIR/features/stdin.FORMAT; where none
is, JSON lines to standard output. docs/models.md has more, docs/keys.md every key.

Arguments, as in --config=configs/extract.py:sentences

| argument  | what                                                                                             |
|-----------|--------------------------------------------------------------------------------------------------|
| sentences | as sentence-transformers: pooled as the folder says, else the mean of the last layer; of length 1 |
| last_four | the last four layers, concatenated, for each token: the features of the paper's Table 7          |

Hardware: whatever there is; with a model of 6 layers and width 384 two CPU cores do some hundred sentences a second.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import parse_argument, using_config


def get_config(argument: str = '') -> ConfigDict:
    """See the module's docstring for the arguments."""
    chosen = parse_argument(argument, sentences=False, last_four=False)
    config = using_config('extract')
    if chosen.sentences:
        config.extract.normalize = True
    if chosen.last_four:
        config.extract.layers, config.extract.combine, config.extract.pool = (-4, -3, -2, -1), 'concat', 'none'
    return config
