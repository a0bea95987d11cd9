"""Shortens words of more than 10,000 characters, such as base64 dumps.

Such words do not occur in any language, and the time to train a vocabulary grows with the square of a word's length.
"""

import re
from collections.abc import Iterable, Iterator

# The maximum length of a word in characters. Runs of Chinese without punctuation are shorter. BPE and SentencePiece
# learn only from the beginning of a longer word. A vocabulary of symbols (symbols.py) ignores a longer symbol.
MAX_WORD = 10_000
# A run consists of letters and digits, of white space, or of other characters. In byte-level BPE, a long word is a
# single run, apart from a space before it. The look-behinds let a match begin only at the start of a run, so that the
# time of a search is linear.
_RUN = re.compile(
    rf'(?<![^\W_])([^\W_]{{{MAX_WORD}}})[^\W_]+'
    rf'|(?<!\s)(\s{{{MAX_WORD}}})\s+'
    rf'|(?<![^\w\s])(?<!_)((?:[^\w\s]|_){{{MAX_WORD}}})(?:[^\w\s]|_)+'
)
_UNBROKEN = re.compile(rf'(?<!\S)(\S{{{MAX_WORD}}})\S+')


def shorten_runs(texts: Iterable[str]) -> Iterator[str]:
    """Yields each text with every run (see `_RUN`) cut to MAX_WORD characters."""
    for text in texts:
        yield _RUN.sub(lambda match: match[match.lastindex], text) if len(text) > MAX_WORD else text


def shorten_unbroken(text: str) -> str:
    """Returns the text with each run of characters other than white space cut to MAX_WORD characters."""
    return _UNBROKEN.sub(r'\1', text) if len(text) > MAX_WORD else text
