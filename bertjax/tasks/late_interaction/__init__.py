"""Late interaction (ColBERT): a vector of each token, and scores of pairs by the most similar tokens."""
