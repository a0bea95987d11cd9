"""BERT-large (24 layers, width 1024, 16 heads; 336 M parameters), the published recipe.

    python -m bertjax.main --config=configs/pretrain_large.py --workdir=out/pretrain_large --config.corpus=PATH

The run has 1,000,000 steps of 256 sequences. The sequences have 128 positions in the first 90 % of the steps, then 512
(arXiv 1810.04805, appendix A.2, and google-research/bert).

Hardware: 32 chips of TPU v5e, in bfloat16. The compiler's estimate of a step (docs/scaling.md) gives 7.9 hours for the
first 90 % of the steps and 1.9 hours for the rest; not run here. Expected: held-out perplexity 3.23 (paper, table 6),
MNLI 86.7, SQuAD 1.1 dev F1 90.9.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config, two_phases


def get_config() -> ConfigDict:
    config = pretraining_config('large', phases=two_phases())
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    return config
