"""Relation classification: predicts the relation between two entities in a sentence."""
