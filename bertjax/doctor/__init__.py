"""The checks of run=doctor. Each check prints one line."""
