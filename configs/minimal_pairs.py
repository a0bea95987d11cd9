"""Accuracy on minimal pairs such as BLiMP's: how often a masked language model prefers the good sentence.

    python -m bertjax.main --config=configs/minimal_pairs.py --workdir=out/tiny --config.input=blimp.jsonl.gz

The model comes from --workdir, or from --config.init=PATH, as for bertjax.load. It needs an MLM head. The input is a
file of JSON, CSV, TSV, Parquet or Arrow with the fields of BLiMP (arXiv 1912.00582), with `good` and `bad`, or with the
fields that the keys of config.minimal_pairs name. The score of a sentence is its pseudo-log-likelihood (arXiv
1910.14659): each piece is masked in turn. Equal scores count as wrong.

The run prints the accuracy, with its standard error, by set, by phenomenon and over all sets. The same numbers are in
WORKDIR/minimal_pairs/blimp.json. blimp.jsonl has the scores of each pair. After an interruption the same command
continues.

Hardware: any; scoring computes one masked copy of a sentence per piece. A CPU core computes 600 to 800 copies per
second with a model of 4 layers and width 256. At this rate, the 67,000 pairs of BLiMP (1.3 million copies) take a
quarter of an hour on two cores (computed).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import inference_config


def get_config() -> ConfigDict:
    return inference_config('minimal_pairs')
