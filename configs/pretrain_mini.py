"""BERT-mini (4 layers, width 256, 11.3 M parameters): a size for experiments on a CPU.

    python -m bertjax.main --config=configs/pretrain_mini.py --workdir=out/pretrain_mini --config.corpus=PATH

Hardware: 2 CPU cores. docs/pretraining.md has the loss of this recipe on 22 MB of Wikipedia. The sizes tiny to medium
come from arXiv 1908.08962.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config('mini')
    # In an hour on two cores, the model sees 22 MB of text about twice. With AdamW and without dropout, it soon learns
    # more than the frequencies of pieces. With BERT's Adam at 1e-3, it does not.
    config.batch_size = 16
    config.steps = 5000
    config.optimizer.name = 'adamw'
    config.optimizer.b2 = 0.98
    config.learning_rate = 5e-4
    config.warmup_fraction = 0.02
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0
    config.model.scan_layers = False  # a tenth less processor time per step
    config.log_every = 20
    config.eval_every = '5%'
    config.eval_examples = 1024
    config.checkpoint_every = '5%'
    return config
