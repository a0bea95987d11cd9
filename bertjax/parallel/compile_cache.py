"""Compiled programs are kept on disk, so that the next run of the same shapes need not compile them."""

import contextlib
import hashlib
import os
import pathlib
import platform

import jax

VARIABLE = 'JAX_COMPILATION_CACHE_DIR'
MOST_BYTES = 4 * 2**30
_LEAST = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'
LEAST_SECONDS = 0.2  # JAX's own is 1: a small model's evaluation takes less, at every start, for every length


def enable_compile_cache() -> None:
    """Turns on JAX's persistent compilation cache, in the user's own cache folder: `~/.cache/bertjax/compiled`, or
    where XDG_CACHE_HOME says.

    JAX's own environment variable JAX_COMPILATION_CACHE_DIR wins: it names another folder, or empty none. JAX tells
    programs apart by its version, the compiler's flags and the devices, and does without the cache, with a warning,
    where it cannot be read. What compiles in less than LEAST_SECONDS is not kept, unless JAX's own variable for that
    says otherwise. Where there is no folder to write to, nothing is kept. When more than MOST_BYTES have gathered, what
    was not used for longest is removed.
    """
    if _LEAST not in os.environ:
        least = min(LEAST_SECONDS, jax.config.jax_persistent_cache_min_compile_time_secs)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', least)
    if VARIABLE in os.environ or jax.config.jax_compilation_cache_dir:
        return
    try:
        caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
        folder = pathlib.Path(caches) / 'bertjax' / 'compiled' / _machine()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            return
        _prune(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return
    jax.config.update('jax_compilation_cache_dir', str(folder))


def _machine() -> str:
    """A name for machines with the same instructions: programs for a CPU use all that it has, and machines of several
    kinds may share a home."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as lines:
            has = next(line for line in lines if line.startswith(('flags', 'Features')))
    except (OSError, StopIteration):
        has = platform.processor()
    return f'{platform.machine()}-{hashlib.sha256(has.encode()).hexdigest()[:8]}'


def _prune(folder: pathlib.Path, most: int = MOST_BYTES) -> None:
    """Removes the programs that were not used for longest, until at most so many bytes are left.

    Other processes prune, too. A folder is the compiler's: of what it has measured on a GPU.
    """
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found.append((path.stat(), path))
    left = sum(facts.st_size for facts, _ in found)
    for facts, path in sorted(found, key=lambda item: item[0].st_atime):
        if left <= most:
            return
        path.unlink(missing_ok=True)
        left -= facts.st_size
