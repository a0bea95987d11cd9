"""XLA flags for machines with GPUs, set before JAX starts. Flags that XLA_FLAGS already contains are not changed.

Other flags, and all flags for TPUs, keep XLA's defaults, because we have no measurements in favor of other values.
"""

import os

FLAGS = {
    # With this flag, GPUs exchange gradients while they compute other gradients. NVIDIA's images of JAX set it too
    # (docs.nvidia.com/jax-toolbox/environment-variables).
    'xla_gpu_enable_latency_hiding_scheduler': True,
    # A resumed run must give the same bits, so this flag excludes sums by atomic operations, whose order varies. With
    # the flag, cuDNN's attention uses its deterministic backward pass (openxla/xla, pull request 14125). Only scatters
    # whose indices may repeat become slow, and a step has none (model/lookup.py).
    'xla_gpu_exclude_nondeterministic_ops': True,
}
VARIABLE = 'XLA_FLAGS'


def set_compiler_flags() -> None:
    """Adds the missing FLAGS to XLA_FLAGS. This has no effect after XLA has started."""
    existing = os.environ.get(VARIABLE, '').split()
    existing_names = {flag.lstrip('-').partition('=')[0] for flag in existing}
    added = [f'--{name}={str(value).lower()}' for name, value in FLAGS.items() if name not in existing_names]
    os.environ[VARIABLE] = ' '.join([*existing, *added])
