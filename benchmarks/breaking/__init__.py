"""The attempts of benchmarks/break_it.py, with one module per kind."""
