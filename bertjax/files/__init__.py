"""Find, read and atomically write local files, whatever their content."""
