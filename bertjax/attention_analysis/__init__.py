"""Analyzes attention heads: statistics, syntactic relations, changes by fine-tuning, and an HTML page."""
