"""The tasks that a model can be fine-tuned for."""
