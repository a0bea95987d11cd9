"""Multiple choice: selects the correct ending of a text."""
