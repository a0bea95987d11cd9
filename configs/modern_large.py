"""ModernBERT-large (28 layers, width 1024, 16 heads; 396 M parameters), the published phases.

    python -m bertjax.main --config=configs/modern_large.py --workdir=out/modern_large --config.corpus=PATH

The phases come from arXiv 2412.13663, as in `configs/modern_base.py`. The learning rate is 5e-4 for 900 billion
tokens, then 5e-5 for 800 billion tokens and for the rows of 8,192. The original started from the weights of the base
model; this recipe starts from random weights.

Hardware: 64 chips of TPU v5e take 8.1 days in bfloat16 and use 11 GiB per chip. This follows from the compiler's
estimate of a step: 1,484 ms for rows of 1,024 and 282 ms for rows of 8,192 (docs/scaling.md; not run).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import modern_config, modern_phase


def get_config() -> ConfigDict:
    config = modern_config('400m', learning_rate=5e-4)
    config.grad_accum_steps = 6
    config.steps = 932_479
    # Percentages (190,739, 169,543, 476,832 and 95,365 steps), so that --config.steps scales all phases.
    config.phases = (
        modern_phase(1024, steps='20.455%', warmup_fraction=0.0022),
        modern_phase(1024, steps='18.182%', learning_rate=5e-5),
        modern_phase(8192, steps='51.136%', batch_size=64, grad_accum_steps=1, learning_rate=5e-5),
        modern_phase(8192, steps='10.227%', batch_size=64, grad_accum_steps=1, learning_rate=5e-5, decay_fraction=1.0),
    )
    return config
