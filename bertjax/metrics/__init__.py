"""Metrics of tasks, and the values of the rows of metrics.jsonl."""
