"""What the heads of a trained model do: statistics, relations, changes in a fine-tuning, and a page to look at them."""
