"""Inference with a trained model: features, masked words, scores, attention, and predictions of its task."""
