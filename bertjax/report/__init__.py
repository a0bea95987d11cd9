"""The HTML report of a workdir. A section without data shows a note or is omitted."""
