"""Tasks that assign a label, several labels or a score to a text or a pair of texts."""
