"""Quick checks that a GPU and the CPU compute the same. benchmarks/gpu_step.py runs them before it times steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_training import Ours, Row

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import IMPLEMENTATIONS
from bertjax.model.dropout import Dropout


def check_attention() -> list[str]:
    """Compares each attention implementation that this device supports with plain attention on the CPU in float32.

    Returns:
      One line for each comparison.

    Raises:
      SystemExit: A difference is larger than rounding to bfloat16 explains.
    """
    rng, lines = np.random.default_rng(0), []
    B, S, H, K = 4, 256, 4, 64
    arrays = [rng.standard_normal((B, S, H, K)).astype(np.float32) for _ in range(4)]
    key_mask = (np.arange(S) < np.array([S, 200, 130, S])[:, None]).astype(np.int32)
    sequences = np.minimum(np.arange(S) // 90, 2).astype(np.int32)[None].repeat(B, 0)
    dropout = Dropout(jnp.uint32(7), jnp.arange(B, dtype=jnp.uint32))
    cases = {'': (False, 0.0), ', dropout': (False, 0.1), ', dropout, packed': (True, 0.1)}

    def all_of(attend: Callable, packed: bool, rate: float, device: jax.Device, dtype: Any) -> list[np.ndarray]:
        mask = AttentionMask(jnp.asarray(key_mask), jnp.asarray(sequences) if packed else None)

        def run(query, key, value, cotangent):
            function = lambda *x: attend(*x, mask, dropout_rate=rate, dropout=dropout if rate else None)  # noqa: E731
            output, pull = jax.vjp(function, query, key, value)
            return output, *pull(cotangent)

        with jax.default_device(device):
            inputs = [jnp.asarray(x, dtype) for x in (*arrays[:3], arrays[3] * key_mask[:, :, None, None])]
            return [np.asarray(x, np.float32) for x in jax.jit(run)(*inputs)]

    cpu = jax.local_devices(backend='cpu')[0]
    shape = jax.ShapeDtypeStruct((B, S, H, K), jnp.bfloat16)
    for words, (packed, rate) in cases.items():
        exact = all_of(IMPLEMENTATIONS['dot_product'].attend, packed, rate, cpu, jnp.float32)
        mask = AttentionMask(key_mask, sequences if packed else None)
        for name in ('dot_product', 'cudnn', 'fused_gpu'):
            implementation = IMPLEMENTATIONS[name]
            if implementation.supports(shape, shape, mask, rate):
                continue
            outputs = all_of(implementation.attend, packed, rate, jax.devices()[0], jnp.bfloat16)
            errors = [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(outputs, exact, strict=True)]
            lines.append(f'{name}{words}: relative error {max(errors):.4f}, compared with float32 on the CPU')
            if not max(errors) < 0.02:
                raise SystemExit(f'wrong attention: {lines[-1]}')
    return lines


def check_losses() -> list[str]:
    """Compares the losses of a small model's first three steps with those on the CPU (float32, same dropout masks).

    Returns:
      One line with the losses.

    Raises:
      SystemExit: The losses differ by more than rounding to bfloat16 explains.
    """
    row = Row('tiny', 128, 16, 0)
    gpu_losses, cpu_losses = (
        [side.step() for _ in range(3)]
        for side in (
            Ours(row, jax.devices()),
            Ours(row, jax.local_devices(backend='cpu'), dtype='float32', attention='dot_product'),
        )
    )
    text = ', '.join(
        f'{on_gpu:.4f} ({on_cpu:.4f} on the CPU)' for on_gpu, on_cpu in zip(gpu_losses, cpu_losses, strict=True)
    )
    if not np.allclose(gpu_losses, cpu_losses, rtol=5e-3):
        raise SystemExit(f'wrong losses: {text}')
    return [f'losses of three steps: {text}']
