"""Strict readers of a task's files: nothing malformed passes, and every message names file and line."""
