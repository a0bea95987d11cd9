"""The checks of run=doctor: those that the verbs begin with, and what only a look at all of them tells; a line each."""
