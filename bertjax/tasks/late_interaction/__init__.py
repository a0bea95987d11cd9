"""Late interaction (ColBERT): each token has a vector, and the most similar tokens determine the score of a pair."""
