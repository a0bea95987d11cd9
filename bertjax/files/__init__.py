"""Files, whatever is in them: found, read, written whole or not at all."""
