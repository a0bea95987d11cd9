"""Saving and resuming: Orbax, sealed against damage."""

from bertjax.checkpoint.checkpoints import Checkpoints, Position, Saved

__all__ = ['Checkpoints', 'Position', 'Saved']
