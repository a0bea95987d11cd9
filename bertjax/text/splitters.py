"""The sentence splitters for config.corpus_options.sentences: the rules of sentences.py, and pysbd."""

import importlib.metadata
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.text.sentences import RULES_VERSION, split_sentences

RULES, PYSBD = 'rules', 'pysbd'
UNKNOWN = 'unknown'  # the version of a package that is not installed
Splitter = Callable[[str], list[str]]

_WHERE = 'config.corpus_options.sentences'
_NAME = re.compile(rf'{RULES}|{PYSBD}(?::[a-z]{{2}})?')
# The time of pysbd grows with the square of the length. It is half a second for this many characters.
_MAX_PIECE = 10_000


def check_splitter(name: str) -> None:
    """Raises a UserError if a splitter's name is malformed. `build_splitter` checks the package and the language."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = f"{RULES!r}, {PYSBD!r} or '{PYSBD}:LANGUAGE', such as '{PYSBD}:de'"
        raise UserError(_WHERE, repr(name), expected, 'choose one of them')


def build_splitter(name: str) -> Splitter:
    """Returns the function that splits a paragraph into sentences. `name` is 'rules', 'pysbd' or 'pysbd:LANGUAGE'.

    Raises:
      UserError: pysbd is not installed or does not support the language.
    """
    return split_sentences if name == RULES else _Pysbd(name.partition(':')[2] or 'en')


def splitter_version(name: str) -> str:
    """Returns the splitter and its version, such as 'rules 5' or 'pysbd 0.3.4'; UNKNOWN if pysbd is not installed."""
    if name == RULES:
        return f'{RULES} {RULES_VERSION}'
    try:
        return f'{PYSBD} {importlib.metadata.version("pysbd")}'
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


class _Pysbd:
    """Splits with pysbd (Sadvilkar and Neumann, 2020, arXiv 2010.09657), and changes only white space."""

    def __init__(self, language: str):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # pysbd has regular expressions that are not raw strings
                import pysbd
                from pysbd.languages import LANGUAGE_CODES
        except ImportError:
            found, fix = 'pysbd, which is not installed', "pip install 'bertjax[pysbd]', or set it to 'rules'"
            raise UserError(_WHERE, found, 'an installed splitter', fix) from None
        if language not in LANGUAGE_CODES:
            known = ', '.join(sorted(LANGUAGE_CODES))
            raise UserError(_WHERE, f'the language {language!r}', f'one of {known}', 'choose one of them')
        self._segmenter = pysbd.Segmenter(language=language, clean=False)

    def __call__(self, paragraph: str) -> list[str]:
        sentences: list[str] = []
        for piece in _pieces(paragraph):
            # pysbd would be too slow for a piece of at least 2 * _MAX_PIECE characters, which has a very long sentence.
            sentences += self._split(piece) if len(piece) < 2 * _MAX_PIECE else split_sentences(piece)
        return sentences

    def _split(self, text: str) -> list[str]:
        """Splits a text with pysbd, or with the rules if pysbd fails or changes a character."""
        try:
            # `segment` is slower, because it searches for each sentence from the beginning of the text.
            pieces = self._segmenter.processor(text).process()
        except Exception:  # pysbd may raise any error
            return split_sentences(text)
        lengths = [len(''.join(sentence.split())) for sentence in pieces]
        if ''.join(''.join(pieces).split()) != ''.join(text.split()):
            return split_sentences(text)
        return [sentence for sentence in _cut_at(text, lengths) if sentence]


def _pieces(paragraph: str) -> Iterator[str]:
    """Yields a paragraph in pieces of about _MAX_PIECE characters. A piece ends where the rules end a sentence."""
    if len(paragraph) <= _MAX_PIECE:
        yield paragraph
        return
    start = end = size = 0
    for sentence in split_sentences(paragraph):
        end = paragraph.index(sentence, end) + len(sentence)
        size += len(sentence)
        if size >= _MAX_PIECE:
            yield paragraph[start:end].strip()
            start, size = end, 0
    if end > start:
        yield paragraph[start:end].strip()


def _cut_at(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """Cuts a text into stripped parts. Part i has `lengths[i]` characters other than white space."""
    indices = [index for index, char in enumerate(text) if not char.isspace()]
    ends = list(itertools.accumulate(lengths, initial=0))
    for first, last in itertools.pairwise(ends):
        yield text[indices[first] : indices[last - 1] + 1] if last > first else ''
