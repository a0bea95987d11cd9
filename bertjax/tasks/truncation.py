"""How much of two sequences is kept when both together are too long."""


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """The kept lengths of two sequences: tokens come off the longer one until both are equal, then off both in turn.

    The same lengths as `truncation='longest_first'` of Hugging Face's tokenizers.

    Args:
      first, second: lengths.
      room: tokens that there is room for.
    """
    short, long = sorted((first, second))
    if short + long > room:
        short, long = min(short, room // 2), max(room - short, room - room // 2)
    return (short, long) if first <= second else (long, short)
