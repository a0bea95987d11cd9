"""The checks of run=doctor. Each result is printed as one line."""
