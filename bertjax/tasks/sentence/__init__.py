"""Tasks that give a text, or a pair of texts, one label or one score."""
