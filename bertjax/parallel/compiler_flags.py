"""What XLA is told on machines with GPUs, before JAX starts; whatever XLA_FLAGS says already stays as it is.

Nothing else is set: products by Triton or cuBLAS as measured (autotuning), CUDA graphs, and the sizes up to which
collectives are combined are XLA's own choices by default, and no figure here says better. On TPUs nothing is set
either: docs/performance.md has what was tried.
"""

import os

FLAGS = {
    # Gradients are exchanged while others are still computed, where several GPUs exchange any. NVIDIA's images of JAX
    # have it set (docs.nvidia.com/jax-toolbox/environment-variables).
    'xla_gpu_enable_latency_hiding_scheduler': True,
    # A run that was killed ends in the same bits: nothing may add up by atomic operations, in another order each time.
    # cuDNN's attention then has the backward pass that does not (openxla/xla, pull request 14125). What costs under it
    # is a scatter, of which a step has none: see model/lookup.py.
    'xla_gpu_exclude_nondeterministic_ops': True,
}
VARIABLE = 'XLA_FLAGS'


def set_compiler_flags() -> None:
    """Adds FLAGS to XLA_FLAGS, each unless it is named there. Later than XLA's start it has no effect."""
    given = os.environ.get(VARIABLE, '').split()
    named = {flag.lstrip('-').partition('=')[0] for flag in given}
    added = [f'--{name}={str(value).lower()}' for name, value in FLAGS.items() if name not in named]
    os.environ[VARIABLE] = ' '.join([*given, *added])
