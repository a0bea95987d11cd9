"""RoBERTa-base's recipe (arXiv 1907.11692): full sentences, no sentence pairs, dynamic masks, large batches.

    python -m bertjax.main --config=configs/roberta_base.py --workdir=out/roberta_base --config.corpus=PATH

The run has 500,000 steps of 8,192 sequences of 512, Adam with b2 0.98 and bias correction, no clipping, and a warm-up
of 24,000 steps.

By default, the vocabulary is WordPiece, and the model is exported as a BertForMaskedLM. With byte-level pieces, it is
exported as a RobertaForMaskedLM. To train such pieces as in RoBERTa, set --config.vocab.family=bpe
--config.vocab.lowercase=False --config.vocab.size=50265. To use an existing vocabulary, set config.tokenizer.

Hardware: 64 chips of TPU v5e, in bfloat16; 8 accumulation steps (config.grad_accum_steps). Expected with RoBERTa's 160
GB of text: MNLI 87.6, SST-2 94.8 (fairseq's README); not run here.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config('base')
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    config.model.num_segments = 1
    config.pairs.mode = 'full_sentences'
    config.pairs.short_probability = 0.0
    config.seq_len = 512
    config.max_predictions = 80
    config.batch_size = 8192
    config.grad_accum_steps = 8
    config.steps = 500_000
    config.learning_rate = 6e-4
    config.warmup_fraction = 0.048
    config.optimizer.name = 'adamw'
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    return config
