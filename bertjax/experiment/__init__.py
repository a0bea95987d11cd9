"""A config made ready to run, and what a run left behind."""
