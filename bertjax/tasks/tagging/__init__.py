"""A tag for each word: named entities, parts of speech."""
