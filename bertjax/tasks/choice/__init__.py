"""Multiple choice: the right one of several endings."""
