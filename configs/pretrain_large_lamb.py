"""BERT-large in large batches with LAMB, 8,601 steps (arXiv 1904.00962, NVIDIA DeepLearningExamples).

    python -m bertjax.main --config=configs/pretrain_large_lamb.py --workdir=out/lamb --config.corpus=PATH

Phase 0 has 7,038 steps of 65,536 sequences of 128 with a learning rate of 6e-3. Phase 1 has 1,563 steps of 32,768
sequences of 512 with a learning rate of 4e-3. Each phase has a warm-up, then a polynomial decay of power 0.5. NVIDIA's
decay begins at the first step of a phase, so that NVIDIA's learning rate only reaches 0.85 and 0.93 of these values.

Hardware: 256 chips of TPU v5e, in bfloat16, or 64 H100 (not tried), with 8 accumulation steps per batch
(config.grad_accum_steps). The compiler's estimate of a step (docs/scaling.md) gives 0.9 and 0.4 hours for the
phases; not run here. Expected: SQuAD 1.1 dev F1 of 90.58 (LAMB paper, table 1, its 64k/32k row of 8,599 steps).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import phase, pretraining_config


def get_config() -> ConfigDict:
    config = pretraining_config('large')
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = False  # faster on TPU by the compiler's estimate: docs/pretraining.md
    config.optimizer.name = 'lamb'
    config.schedule.name = 'polynomial'
    config.schedule.power = 0.5
    config.steps = 8601
    # Percentages (7,038 and 1,563 of 8,601 steps), so that --config.steps scales both phases.
    config.phases = (
        phase(
            steps='81.828%',
            seq_len=128,
            max_predictions=20,
            batch_size=65536,
            learning_rate=6e-3,
            warmup_fraction=0.2843,
            grad_accum_steps=8,
        ),
        phase(
            steps='18.172%',
            seq_len=512,
            max_predictions=80,
            batch_size=32768,
            learning_rate=4e-3,
            warmup_fraction=0.128,
            grad_accum_steps=8,
        ),
    )
    return config
