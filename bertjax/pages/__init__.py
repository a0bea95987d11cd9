"""HTML pages that are one file: nothing is fetched, text is escaped, in light and dark, for any width of window."""
