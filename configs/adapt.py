"""A checkpoint, ours or anybody's BERT, pre-trained further on text of another domain or language.

    python -m bertjax.main --config=configs/adapt.py --workdir=out/adapted --config.init=CHECKPOINT --config.corpus=PATH

CHECKPOINT is the workdir of a pre-training, a Hugging Face directory, or org/name on the hub. Its architecture and its
vocabulary are taken over. Words of your own become pieces with --config.vocab.add=FILE, a word a line. With
--config.run=vocab --config.vocab.candidates=1000 the same command lists those that the corpus has and the vocabulary
splits.
--config.heldout_texts=wiki=FILE shows, beside the held-out text of the corpus, what is forgotten elsewhere.

Hardware: whatever the checkpoint needs; benchmarks/adapt.py adapts a BERT-mini on 2 CPU cores (docs/data.md). The
learning rate is the one that google-research/bert's README names for additional steps from a checkpoint, 2e-5. How many
steps pay depends on the text: arXiv 2004.10964 takes 12,500 of 2,048 sequences. A checkpoint without an MLM head, such
as a sentence encoder, has it drawn afresh: it needs a higher rate, and first learns that head.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config()
    config.architecture_from = 'init'
    config.batch_size = 32
    config.steps = 10_000
    # Adam's moments are not part of a checkpoint: corrected, their first estimates do no harm.
    config.optimizer.name = 'adamw'
    config.learning_rate = 2e-5
    config.warmup_fraction = 0.1
    config.log_every = 50
    config.eval_every = '10%'
    config.eval_examples = 2048
    config.checkpoint_every = '10%'
    return config
