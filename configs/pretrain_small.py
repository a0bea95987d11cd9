"""BERT-small (4 layers, width 512, 29.1 M parameters), with BERT-base's recipe.

    python -m bertjax.main --config=configs/pretrain_small.py --workdir=out/pretrain_small --config.corpus=PATH

Hardware: 4 chips of TPU v5e, in bfloat16; or one large GPU (not tried). BERT's 1,000,000 steps of 256 sequences are
more than this size needs. --config.steps=100000 shortens both phases in proportion. Expected: a GLUE score of 71.2
(google-research/bert's README); not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config, two_phases


def get_config() -> ConfigDict:
    config = pretraining_config('small', phases=two_phases())
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    return config
