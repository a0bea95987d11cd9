"""The HTML report of a workdir, with one module per section. A section shows a note if its data is missing."""
