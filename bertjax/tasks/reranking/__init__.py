"""Rerankers: an encoder reads a query and a text together, and scores the pair."""
