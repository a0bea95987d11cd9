"""Shortens words of thousands of characters, such as a base64 dump or a file without white space.

No language has them, and a trainer of subwords needs time that grows with the square of a word's length.
"""

import re
from collections.abc import Iterable, Iterator

# Characters. Above it, a vocabulary is trained on the beginning of a word. Runs of Chinese without any punctuation are
# shorter.
MAX_WORD = 10_000
# Byte-level BPE merges nothing across these: letters and digits, white space, all else. The look-behinds let a match
# begin at the start of a run only, which keeps the search linear.
_RUN = re.compile(
    rf'(?<![^\W_])([^\W_]{{{MAX_WORD}}})[^\W_]+'
    rf'|(?<!\s)(\s{{{MAX_WORD}}})\s+'
    rf'|(?<![^\w\s])(?<!_)((?:[^\w\s]|_){{{MAX_WORD}}})(?:[^\w\s]|_)+'
)
_UNBROKEN = re.compile(rf'(?<!\S)(\S{{{MAX_WORD}}})\S+')
_ASCII_RUN = re.compile(rf'(?<![A-Za-z0-9])([A-Za-z0-9]{{{MAX_WORD}}})[A-Za-z0-9]+')


def shorten_runs(texts: Iterable[str]) -> Iterator[str]:
    """The texts with each run of letters and digits, of white space, or of other characters cut to MAX_WORD."""
    for text in texts:
        yield _RUN.sub(_beginning, text) if len(text) > MAX_WORD else text


def shorten_unbroken(text: str) -> str:
    """The text with each run of characters other than white space cut to MAX_WORD."""
    return _UNBROKEN.sub(_beginning, text) if len(text) > MAX_WORD else text


def shorten_ascii_runs(text: str) -> str:
    """The text with each run of ASCII letters and digits cut to MAX_WORD.

    BERT makes one [UNK] of a word of more than 100 characters, so its ids stay the same.
    """
    return _ASCII_RUN.sub(_beginning, text) if len(text) > MAX_WORD else text


def _beginning(match: re.Match[str]) -> str:
    return match[match.lastindex]
