"""The HTML report of a workdir, one file per section. A section shows a note if its data are missing."""
