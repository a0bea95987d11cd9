"""Inference with a trained model: features, mask filling, scores, attention, and predictions for its task."""
