"""The attempts of benchmarks/break_it.py, one file per kind."""
