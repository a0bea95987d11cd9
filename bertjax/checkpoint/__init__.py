"""Saving and resuming: Orbax, with checksums against damage."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.checkpoint.checkpoints import Checkpoints, Position, SavedCheckpoint

__all__ = ['Checkpoints', 'Position', 'SavedCheckpoint']


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: Orbax takes as long as JAX, and a model is mostly read without it.
    if name in __all__:
        from bertjax.checkpoint import checkpoints

        return getattr(checkpoints, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
