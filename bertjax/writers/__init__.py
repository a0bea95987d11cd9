"""Where measurements go: JSON lines, the console, TensorBoard."""
