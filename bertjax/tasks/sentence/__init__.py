"""Tasks that give a text, or a pair of texts, a label, some labels or a score."""
