"""Sets up JAX's compilation cache on disk, from which a later run loads its programs instead of compiling them."""

import contextlib
import hashlib
import os
import pathlib
import platform

import jax

VARIABLE = 'JAX_COMPILATION_CACHE_DIR'
MAX_BYTES = 4 * 2**30
_MIN_COMPILE_VARIABLE = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'
# With JAX's default of 1 s, the evaluation of a small model would be compiled for every length at every start.
MIN_COMPILE_SECONDS = 0.2


def enable_compile_cache() -> None:
    """Enables JAX's persistent compilation cache, in the folder $XDG_CACHE_HOME/bertjax/compiled/MACHINE.

    XDG_CACHE_HOME is `~/.cache` by default, and MACHINE is the result of `machine_name`. JAX's environment variable
    JAX_COMPILATION_CACHE_DIR takes precedence; an empty value disables the cache. If the folder is not writable,
    nothing is cached. Programs that compile in less than MIN_COMPILE_SECONDS are not cached;
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS overrides this limit. If the cache is larger than MAX_BYTES, this
    function removes the least recently used programs.
    """
    if _MIN_COMPILE_VARIABLE not in os.environ:
        min_seconds = min(MIN_COMPILE_SECONDS, jax.config.jax_persistent_cache_min_compile_time_secs)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', min_seconds)
    if VARIABLE in os.environ or jax.config.jax_compilation_cache_dir:
        return
    try:
        caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
        folder = pathlib.Path(caches) / 'bertjax' / 'compiled' / machine_name()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            return
        prune(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return
    jax.config.update('jax_compilation_cache_dir', str(folder))


def machine_name() -> str:
    """Returns a name that machines share only if their CPUs have the same instructions.

    A compiled program may use any instruction of its CPU, so other CPUs must not load it from a shared home directory.
    """
    try:
        with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as lines:
            features = next(line for line in lines if line.startswith(('flags', 'Features')))
    except (OSError, StopIteration):
        features = platform.processor()
    return f'{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}'


def prune(folder: pathlib.Path, max_bytes: int = MAX_BYTES) -> None:
    """Removes the least recently used programs until at most `max_bytes` bytes are left.

    Other processes may prune at the same time. Sub-folders are kept: XLA stores its GPU autotuning results there.
    """
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                files.append((path.stat(), path))
    total = sum(stat.st_size for stat, _ in files)
    for stat, path in sorted(files, key=lambda item: item[0].st_atime):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size
