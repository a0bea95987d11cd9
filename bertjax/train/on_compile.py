"""How what takes long without a step is told: compiling."""

import contextlib
from collections.abc import Callable

# on_compile('length 128') -> a context in which that is compiled.
OnCompile = Callable[[str], contextlib.AbstractContextManager[None]]


def ignore_compile(what: str) -> contextlib.AbstractContextManager[None]:
    """Tells nobody."""
    del what
    return contextlib.nullcontext()
