"""ModernBERT-base (22 layers, width 768, 12 heads; 149 M parameters), the three published phases.

    python -m bertjax.main --config=configs/modern_base.py --workdir=out/modern_base --config.corpus=PATH

arXiv 2412.13663: 1,719 billion tokens in packed rows of 1,024 with a constant learning rate after a warm-up of 3
billion, 250 billion in rows of 8,192, and 50 billion more while the rate falls to 0 by 1 - sqrt.

Differences from the original: the global RoPE theta is 160,000 from the start (there 10,000 until the rows get longer),
a row holds one part of a document or several short ones that do not see each other, rows of 8,192 come in batches of
64 (there 72), and the first batches are not smaller.

Hardware: the 1.8e21 FLOPs take 64 chips of TPU v5e 96 hours in bfloat16 at 42 % of their peak (computed from a compile
of four layers, see docs/performance.md; not run).
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import modern_config, modern_phase


def get_config() -> ConfigDict:
    config = modern_config('150m', learning_rate=8e-4)
    config.steps = 936_507
    # Percentages, so that --config.steps scales all phases: 364,303, 476,837 and 95,367 steps.
    config.phases = (
        modern_phase(1024, steps='38.9%', warmup_fraction=0.00175, grad_accum_steps=3),
        modern_phase(8192, steps='50.917%', batch_size=64, learning_rate=3e-4),
        modern_phase(8192, steps='10.183%', batch_size=64, learning_rate=3e-4, decay_fraction=1.0),
    )
    return config
