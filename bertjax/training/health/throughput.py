"""Throughput metrics: rates over an interval, model FLOPs utilization (MFU), and memory."""

from collections.abc import Sequence

import jax
import psutil

from bertjax.training.health.goodput_clock import DATA, STEP, GoodputClock

# (part of JAX's device_kind, peak dense bfloat16 FLOP/s per device); the first match applies. Sources: NVIDIA's data
# sheets and Google Cloud's pages on each generation. A v3 device is one of the two cores of a chip.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ('A100', 312e12),
    ('H100 PCIe', 756e12),
    ('H100 NVL', 835e12),
    ('H100', 989e12),
    ('H200 NVL', 835e12),
    ('H200', 989e12),
    ('TPU v3', 61.5e12),
    ('TPU v4', 275e12),
    ('TPU v5 lite', 197e12),
    ('TPU v5e', 197e12),
    ('TPU v5p', 459e12),
    ('TPU v5', 459e12),
    ('TPU v6', 918e12),
)


def peak_flops(device_kind: str) -> float | None:
    """Returns the peak dense bfloat16 FLOP/s of one device, or None if unknown (a CPU, a newer chip)."""
    return next((peak for name, peak in PEAK_FLOPS if name.lower() in device_kind.lower()), None)


class Throughput:
    """Computes rates since the last `lap`. Only the time of steps and the time of waiting for data count."""

    def __init__(self, run_clock: GoodputClock):
        self._run_clock = run_clock
        peak = peak_flops(jax.local_devices()[0].device_kind)
        self._peak = peak * jax.device_count() if peak else None
        self.begin(0.0)

    def begin(self, flops_per_row: float) -> None:
        """Begins a phase. `flops_per_row` is the FLOPs of a training step per row, 0 if unknown."""
        self._flops_per_row = flops_per_row
        self._rows = self._steps = 0

    def count(self, rows: int) -> None:
        """Adds a step with `rows` rows."""
        self._steps += 1
        self._rows += rows

    def lap(self, tokens: Sequence[float], sequences: Sequence[float]) -> list[dict[str, float | None]]:
        """Computes the rates of each run since the last lap and starts a new interval.

        `tokens` (without padding) and `sequences` are the counts of each run since the last lap. In the result,
        data_wait is the fraction of the counted time in which the loop waited for data, and mfu is None if the peak or
        the FLOPs are unknown.
        """
        spent = self._run_clock.lap()
        waited = spent.get(DATA, 0.0)
        seconds = max(spent.get(STEP, 0.0) + waited, 1e-9)
        rate, per_step = self._rows / seconds, seconds / max(self._steps, 1)
        mfu = rate * self._flops_per_row / self._peak if self._peak and self._flops_per_row else None
        self._rows = self._steps = 0
        return [
            {
                'sequences_per_s': num_sequences / seconds,
                'tokens_per_s': num_tokens / seconds,
                'seconds_per_step': per_step,
                'mfu': mfu,
                'data_wait': waited / seconds,
            }
            for num_tokens, num_sequences in zip(tokens, sequences, strict=True)
        ]


def memory_metrics() -> dict[str, int | None]:
    """Returns bytes: `host_memory` of this process, and `device_memory`, the highest peak of a device (None on CPU)."""
    peaks = [(device.memory_stats() or {}).get('peak_bytes_in_use') for device in jax.local_devices()]
    known = [peak for peak in peaks if peak is not None]
    return {'host_memory': psutil.Process().memory_info().rss, 'device_memory': max(known) if known else None}
