"""Where rows of measurements go: JSON lines, the console, TensorBoard."""
