"""Find, read and atomically write local files of any content."""
