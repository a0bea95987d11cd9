"""What benchmarks/break_it.py tries, a file a kind."""
