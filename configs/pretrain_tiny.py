"""BERT-tiny (2 layers, width 128, 4.4 M parameters with a full vocabulary), which needs no data besides Python.

    python -m bertjax.main --config=configs/pretrain_tiny.py --workdir=out/tiny

The corpus is the documentation that comes with Python (pydoc_data.topics), and the vocabulary is trained on it. The run
goes from text to export in 90 seconds on 2 idle CPU cores. Use your own text with --config.corpus=PATH.

The architecture and the sentence pairs are BERT's. In 1,500 steps, a model trained with BERT's optimizer learns only
the frequencies of the pieces. This recipe therefore uses Muon and more masks (docs/pretraining.md).

| argument | meaning                                                                    |
|----------|----------------------------------------------------------------------------|
| adam     | BERT's optimizer (learning rate 1e-3) and its share of masks, 15 per cent  |
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import parse_argument, pretraining_config


def get_config(argument: str = '') -> ConfigDict:
    args = parse_argument(argument, adam=False)
    config = pretraining_config('tiny')
    config.vocab.size = 2048
    config.corpus_options.heldout = 0.1
    config.seq_len = 64
    config.max_predictions = 10
    # With little text and time, many small updates without dropout work best.
    config.batch_size = 16
    config.steps = 1500
    config.learning_rate = 1e-3
    config.warmup_fraction = 0.1
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0
    if not args.adam:
        config.optimizer.update(name='muon', b2=0.98, adam_lr_ratio=0.5)
        config.learning_rate = 1e-2
        # These values gave the lowest held-out loss (evaluated with 15 % masks, over three seeds).
        config.steps = 1700
        config.masking.rate = 0.4
        config.max_predictions = 26
        config.model.init_stddev = 0.05
        config.pairs.short_probability = 0.0
        config.model.scan_layers = False  # an eighth less processor time per step
    config.log_every = 50
    config.eval_every = '20%'
    config.eval_examples = 512
    config.checkpoint_every = '20%'
    return config
