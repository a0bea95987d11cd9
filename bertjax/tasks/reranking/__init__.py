"""Rerankers: scores of a query with each of its texts, which one encoder reads together."""
