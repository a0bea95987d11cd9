"""BERT-medium (8 layers, width 512, 41.7 M parameters), with BERT-base's recipe.

    python -m bertjax.main --config=configs/pretrain_medium.py --workdir=out/pretrain_medium --config.corpus=PATH

Hardware: 4 chips of TPU v5e, in bfloat16, with two accumulation steps per batch in the second phase; or one large GPU
(not tried). BERT's 1,000,000 steps of 256 sequences are more than this size needs. --config.steps=100000 shortens both
phases in proportion. Expected: a GLUE score of 73.5 (google-research/bert's README); not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config, two_phases


def get_config() -> ConfigDict:
    config = pretraining_config('medium', phases=two_phases(grad_accum_steps=2))
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    return config
