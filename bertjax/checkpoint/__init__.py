"""Saving and restoring checkpoints by Orbax, with checksums to detect damage."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.checkpoint.checkpoints import Checkpoints, Position, SavedCheckpoint

__all__ = ['Checkpoints', 'Position', 'SavedCheckpoint']


def __getattr__(name: str) -> Any:
    # A lazy import: importing Orbax takes as long as importing JAX, and loading a model usually does not need it.
    if name in __all__:
        from bertjax.checkpoint import checkpoints

        return getattr(checkpoints, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
