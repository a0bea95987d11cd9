"""Truncation of a pair of sequences to a common maximum length."""


def truncate_longest_first(first: int, second: int, max_total: int) -> tuple[int, int]:
    """Returns the lengths of two sequences after truncation.

    Tokens are removed from the longer sequence until both lengths are equal, then from both sequences in turn. The
    lengths are the same as with `truncation='longest_first'` in Hugging Face tokenizers.

    Args:
      first, second: The lengths of the sequences, in tokens.
      max_total: The maximum sum of both lengths.
    """
    short, long = sorted((first, second))
    if short + long > max_total:
        short, long = min(short, max_total // 2), max(max_total - short, max_total - max_total // 2)
    return (short, long) if first <= second else (long, short)
