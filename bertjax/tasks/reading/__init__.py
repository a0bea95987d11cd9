"""Strict readers of data files: a malformed row raises an error that names the file and the row."""
