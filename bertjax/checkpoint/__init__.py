"""Saving and restoring checkpoints by Orbax, with checksums to detect damage."""
