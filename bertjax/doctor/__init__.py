"""The checks of run=doctor, one line each: the checks of the verbs, and those that need several of them at once."""
