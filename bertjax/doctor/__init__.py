"""The checks of run=doctor: those of the verbs, and some that combine several verbs. Each prints one line."""
