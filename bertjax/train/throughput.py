"""Speed: rates over an interval, model FLOPs utilisation where the device's peak is known, memory."""

import time
from collections.abc import Sequence

import jax
import psutil

# Dense bfloat16 peaks of a device in FLOP/s, from the vendors' data sheets (NVIDIA's, Google Cloud's pages on each
# generation); matched against jax's device_kind, first hit wins. Of a v3 each of a chip's two cores is a device.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ('A100', 312e12),
    ('H100', 989e12),
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
    """Dense bf16 peak of one device in FLOP/s, None where it is not known (a CPU, a newer chip)."""
    return next((peak for name, peak in PEAK_FLOPS if name.lower() in device_kind.lower()), None)


class Stopwatch:
    """Rates since the last `lap`: the time that evaluation and saving take is left out by `pause`."""

    def __init__(self):
        device = jax.local_devices()[0]
        peak = peak_flops(device.device_kind)
        self._peak = peak * jax.device_count() if peak else None
        self.flops_per_sequence = 0.0  # of a row; that of the phase, 0 where it is not known
        self.restart()

    def restart(self) -> None:
        """Begins an interval now."""
        self._start = time.perf_counter()
        self._waited = 0.0
        self._rows = self._steps = 0

    def count(self, rows: int, waited: float) -> None:
        """Adds one batch; `waited`: seconds that the loop waited for its data."""
        self._steps += 1
        self._rows += rows
        self._waited += waited

    def pause(self, seconds: float) -> None:
        """Leaves out time that was not spent on training."""
        self._start += seconds

    def lap(self, tokens: Sequence[float], sequences: Sequence[float]) -> list[dict[str, float | None]]:
        """Rates since the last lap of each run, for the real tokens and the sequences that each had in it.

        Returns:
          sequences_per_s, tokens_per_s, seconds_per_step, mfu (of all runs; None where the peak is not known), and
          data_wait, the share of the time spent waiting for data.
        """
        seconds = max(time.perf_counter() - self._start, 1e-9)
        rate, per_step = self._rows / seconds, seconds / max(self._steps, 1)
        mfu = rate * self.flops_per_sequence / self._peak if self._peak and self.flops_per_sequence else None
        waited = min(self._waited / seconds, 1.0)
        self.restart()
        return [
            {
                'sequences_per_s': several / seconds,
                'tokens_per_s': count / seconds,
                'seconds_per_step': per_step,
                'mfu': mfu,
                'data_wait': waited,
            }
            for count, several in zip(tokens, sequences, strict=True)
        ]


def memory_metrics() -> dict[str, int | None]:
    """Bytes in use: `host_memory` of this process, `device_memory` of the fullest local device (None on CPU)."""
    peaks = [(device.memory_stats() or {}).get('peak_bytes_in_use') for device in jax.local_devices()]
    known = [peak for peak in peaks if peak is not None]
    return {'host_memory': psutil.Process().memory_info().rss, 'device_memory': max(known) if known else None}
