"""Inference with a trained model: text features, mask filling, scores, attention weights and task predictions."""
