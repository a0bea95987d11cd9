"""Relation classification: the relation between two marked entities in a sentence."""
