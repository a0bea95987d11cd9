"""What is measured: rows of metrics.jsonl from sums and weights."""
