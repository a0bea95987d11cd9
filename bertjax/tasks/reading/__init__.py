"""Strict readers of the files of a task: a malformed row is an error whose message names the file and the line."""
