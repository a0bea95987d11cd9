"""Multiple choice: selection of the right one of several endings."""
