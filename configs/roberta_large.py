"""RoBERTa-large's recipe (arXiv 1907.11692): full sentences, no sentence pairs, dynamic masks, large batches.

    python -m bertjax.main --config=configs/roberta_large.py --workdir=out/roberta_large --config.corpus=PATH

The run has 500,000 steps of 8,192 sequences of 512, Adam with b2 0.98 and bias correction, no clipping, and a warm-up
of 30,000 steps.

By default, the vocabulary is WordPiece, and the model is exported as a BertForMaskedLM. With byte-level pieces, it is
exported as a RobertaForMaskedLM. To train such pieces as in RoBERTa, set --config.vocab.family=bpe
--config.vocab.lowercase=False --config.vocab.size=50265. To use an existing vocabulary, set config.tokenizer.

Hardware: 256 chips of TPU v5e, in bfloat16; 2 accumulation steps (config.grad_accum_steps). Expected with RoBERTa's 160
GB of text: MNLI 90.2, SST-2 96.4 (fairseq's README); not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.model.config import SIZES


def get_config() -> ConfigDict:
    config = load_recipe(find_recipe('roberta_base'))
    config.model.update(SIZES['large'])
    config.grad_accum_steps = 2
    config.learning_rate = 4e-4
    config.warmup_fraction = 0.06
    return config
