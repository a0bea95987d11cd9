"""The HTML report of a workdir, with one module per section. A section without data shows a note or is omitted."""
