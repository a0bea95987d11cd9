"""Writers of metrics rows: JSON lines, the console, TensorBoard, experiment trackers."""
