"""Tagging of words, for example with named entities or parts of speech."""
