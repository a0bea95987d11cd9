"""Features of this CPU."""

import pathlib
from collections.abc import Sequence

CPUINFO = pathlib.Path('/proc/cpuinfo')
_BFLOAT16 = {'avx512_bf16', 'amx_bf16', 'bf16'}  # bf16 is the name on ARM


def computes_bfloat16() -> bool:
    """Returns whether the CPU has bfloat16 instructions; True if there is no /proc/cpuinfo.

    Without such instructions PyTorch's bfloat16 kernels are about a hundred times slower than float32.
    """
    if not CPUINFO.exists():
        return True
    lines = (line.partition(':') for line in CPUINFO.read_text().splitlines())
    return any(
        name.strip().lower() in ('flags', 'features') and _BFLOAT16 & {*value.split()} for name, _, value in lines
    )


def native(modes: Sequence[str]) -> list[str]:
    """Returns the modes of PyTorch that are not very slow on this CPU, and prints the names of the others."""
    slow = [] if computes_bfloat16() else [mode for mode in modes if 'bfloat16' in mode]
    if slow:
        print(
            f'left out, because this CPU has no bfloat16 instructions: {", ".join(slow)}; '
            'name them in --modes to run them'
        )
    return [mode for mode in modes if mode not in slow]
