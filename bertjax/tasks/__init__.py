"""What a model is tuned to."""
