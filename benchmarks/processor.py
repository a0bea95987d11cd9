"""What this processor computes natively."""

import pathlib
from collections.abc import Sequence

CPUINFO = pathlib.Path('/proc/cpuinfo')
_BFLOAT16 = {'avx512_bf16', 'amx_bf16', 'bf16'}  # the last of ARM


def computes_bfloat16() -> bool:
    """Whether it has instructions for bfloat16; True where no /proc/cpuinfo says. Without them PyTorch's CPU kernels
    take minutes for what takes a second in float32."""
    if not CPUINFO.exists():
        return True
    lines = (line.partition(':') for line in CPUINFO.read_text().splitlines())
    return any(
        name.strip().lower() in ('flags', 'features') and _BFLOAT16 & {*value.split()} for name, _, value in lines
    )


def native(modes: Sequence[str]) -> list[str]:
    """The modes of PyTorch that can be expected to end; one line names those that are left out."""
    slow = [] if computes_bfloat16() else [mode for mode in modes if 'bfloat16' in mode]
    if slow:
        print(
            f'left out, as this processor has no instructions for bfloat16: {", ".join(slow)}; to run them, name them'
        )
    return [mode for mode in modes if mode not in slow]
