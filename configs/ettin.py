"""Ettin's encoders (arXiv 2507.11412): ModernBERT's architecture and training in six sizes, 17 to 1,031 M parameters.

    python -m bertjax.main --config=configs/ettin.py:17m --workdir=out/ettin_17m --config.corpus=PATH

The first phase has 1,700 billion tokens in packed rows of 1,024. The second has 250 billion tokens in packed rows
of 8,192. The third has 50 billion tokens, also in rows of 8,192, and its learning rate falls as 1 - sqrt, from half the
peak to 0. The learning rates, warm-ups and weight decays come from JHU-CLSP/ettin-encoder-vs-decoder.

Differences from the original: The learning rate is constant in the second phase (original: it falls to half), and the
last phase ends at 0 (original: at 4 % of its peak). Every phase has 30 % masks (original: 15 % in the last phase). A
batch has the same number of tokens in every phase (original: the first batches are smaller). The RoPE theta is 160,000
for global and 10,000 for local attention (original: 10,000 for both in the first phase, then 160,000 for both). `1b`
has the phases of the other sizes (original: 83 and 17 billion tokens after the first phase).

Hardware: a slice of TPU v5e with 64 chips, in bfloat16. The compiler estimates the step and its memory for rows of
1,024 (`--config.run=compile --config.topology=v5e:8x8`; 26 November 2026, then with gradient clipping, which changes
150m by 0.4 %; not run). The hours follow from the step:

| argument | layers / width / heads | rate, decay per step | step, MFU       | GiB per chip | hours, 1,700 B tokens |
|----------|------------------------|----------------------|-----------------|--------------|------------------------|
| 17m      | 7 / 256 / 4            | 3e-3, 3e-4           | 117 ms, 19 %    | 2.4          | 12                     |
| 32m      | 10 / 384 / 6           | 3e-3, 3e-4           | 182 ms, 27 %    | 3.4          | 18                     |
| 68m      | 19 / 512 / 8           | 3e-3, 3e-4           | 391 ms, 34 %    | 6.3          | 39                     |
| 150m     | 22 / 768 / 12          | 8e-4, 1e-5           | 667 ms, 46 %    | 10.0         | 67                     |
| 400m     | 28 / 1024 / 16         | 5e-4, 1e-5           | 1,399 ms, 62 %  | 8.4          | 140                    |
| 1b       | 28 / 1792 / 28         | 5e-4, 5e-5           | 3,340 ms, 68 %  | 14.8         | 334                    |

On these chips, `1b` needs `--config.model.remat=dots` for the rows of 8,192.
"""

from ml_collections import ConfigDict

from bertjax.config.recipes import modern_config, modern_phase, parse_argument

# {size: (learning rate, decay per step, billions of tokens in the warm-up)}
_RATES = {
    '17m': (3e-3, 3e-4, 4), '32m': (3e-3, 3e-4, 4), '68m': (3e-3, 3e-4, 3), '150m': (8e-4, 1e-5, 3),
    '400m': (5e-4, 1e-5, 2), '1b': (5e-4, 5e-5, 2),
}  # fmt: skip


def get_config(argument: str = '') -> ConfigDict:
    """`argument` is the size, see the module's docstring."""
    size = parse_argument(argument, size=tuple(_RATES)).size
    rate, decay, warmup = _RATES[size]
    config = modern_config(size, learning_rate=rate, decay_per_step=decay)
    config.grad_accum_steps = 9 if size in ('400m', '1b') else 3
    config.steps = 423_855
    # Percentages (360,277, 52,982 and 10,596 steps), so that --config.steps scales all phases.
    config.phases = (
        modern_phase(1024, steps='85%', warmup_fraction=warmup / 1700),
        modern_phase(8192, steps='12.5%', batch_size=576),
        modern_phase(8192, steps='2.5%', batch_size=576, learning_rate=rate / 2, decay_fraction=1.0),
    )
    return config
