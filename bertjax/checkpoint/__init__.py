"""Saves and restores checkpoints with Orbax, and detects damage with checksums."""
