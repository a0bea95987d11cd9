"""ModernBERT-base (22 layers, width 768, 12 heads; 149 M parameters), the three published phases.

    python -m bertjax.main --config=configs/modern_base.py --workdir=out/modern_base --config.corpus=PATH

The phases come from arXiv 2412.13663. The first has 1,719 billion tokens in packed rows of 1,024, with a constant
learning rate after a warm-up over 3 billion tokens. The second has 250 billion tokens in packed rows of 8,192. The
third has 50 billion tokens, also in rows of 8,192, and its learning rate falls to 0 as 1 - sqrt.

Differences from the original: The global RoPE theta is 160,000 from the start (original: 10,000 in the first phase). A
row is one part of a document, or several short documents that do not attend to each other. Batches of rows of 8,192
have 64 rows (original: 72). The batch size is constant in each phase (original: the first batches are smaller). In all
phases, the weight decay is proportional to the learning rate (original: 1e-5 per step at the peak of each phase).

Hardware: 64 chips of TPU v5e take 89 hours in bfloat16 and use 10 GiB per chip. This follows from the compiler's
estimate of a step: 669 ms for rows of 1,024 and 135 ms for rows of 8,192 (docs/scaling.md; not run).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import modern_config, modern_phase


def get_config() -> ConfigDict:
    config = modern_config('150m', learning_rate=8e-4)
    config.steps = 936_507
    # Percentages (364,301, 476,841 and 95,365 steps), so that --config.steps scales all phases.
    config.phases = (
        modern_phase(1024, steps='38.9%', warmup_fraction=0.00175, grad_accum_steps=3),
        modern_phase(8192, steps='50.917%', batch_size=64, learning_rate=3e-4),
        modern_phase(8192, steps='10.183%', batch_size=64, learning_rate=3e-4, decay_fraction=1.0),
    )
    return config
