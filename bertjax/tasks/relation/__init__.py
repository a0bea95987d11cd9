"""Tasks that name the relation of two entities that are marked in a sentence."""
