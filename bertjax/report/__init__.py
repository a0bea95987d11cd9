"""The page of a workdir: a file a section, which says what is missing rather than failing."""
