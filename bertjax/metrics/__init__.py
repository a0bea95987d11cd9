"""Metrics of tasks, and the rows of metrics.jsonl from sums and weights."""
