"""Embeddings: vectors of texts whose cosine similarity ranks related texts first."""
