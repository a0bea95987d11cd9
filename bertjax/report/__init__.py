"""What a workdir holds as one HTML page: a file a section, each of which says what is missing rather than failing."""
