"""What a trained model is asked for: features, words for masks, probabilities, attention, answers of its task."""
