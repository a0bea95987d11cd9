"""Finds, reads and atomically writes local files."""
