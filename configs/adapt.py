"""Further pre-training of a checkpoint on text of another domain or language.

    python -m bertjax.main --config=configs/adapt.py --workdir=out/adapted --config.init=CHECKPOINT --config.corpus=PATH

CHECKPOINT is the workdir of a pre-training, a Hugging Face directory, or org/name on the hub. The run uses the
architecture, the dropout and the vocabulary of CHECKPOINT. --config.vocab.add=FILE, with one word per line, adds words
as pieces. With --config.run=vocab --config.vocab.candidates=1000, the same command lists words of the corpus that the
vocabulary splits into pieces. --config.heldout_texts=wiki=FILE also evaluates on other text, to show how much the model
forgets.

Hardware: depends on the checkpoint; benchmarks/adapt.py adapts a BERT-mini on 2 CPU cores (docs/performance.md).
google-research/bert's README recommends the learning rate 2e-5 for additional steps from a checkpoint. The useful
number of steps depends on the text; arXiv 2004.10964 uses 12,500 steps of 2,048 sequences. A checkpoint without an MLM
head, such as a sentence encoder, gets a randomly initialized head and needs a higher learning rate.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config()
    config.architecture_from = 'init'
    config.batch_size = 32
    config.steps = 10_000
    # The moments start at 0, because the checkpoint has none. The bias correction of AdamW compensates for this.
    config.optimizer.name = 'adamw'
    config.learning_rate = 2e-5
    config.warmup_fraction = 0.1
    config.log_every = 50
    config.eval_every = '10%'
    config.eval_examples = 2048
    config.checkpoint_every = '10%'
    return config
