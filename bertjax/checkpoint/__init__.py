"""Saving and resuming: Orbax, with checksums against damage."""

from bertjax.checkpoint.checkpoints import Checkpoints, Position, Saved

__all__ = ['Checkpoints', 'Position', 'Saved']
