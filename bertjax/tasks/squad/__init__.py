"""SQuAD: extraction of the span of a text that answers a question."""
