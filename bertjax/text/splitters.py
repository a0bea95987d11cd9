"""The splitters that config.corpus_options.sentences can name: our rules, and pysbd's for more languages."""

import importlib.metadata
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.text.sentences import RULES_VERSION, split_sentences

RULES, PYSBD = 'rules', 'pysbd'
UNKNOWN = 'unknown'  # the version of what is not installed
Splitter = Callable[[str], list[str]]

_WHERE = 'config.corpus_options.sentences'
_NAME = re.compile(rf'{RULES}|{PYSBD}(?::[a-z]{{2}})?')
# pysbd's time grows with the square of the length: half a second for so many characters, an hour for a megabyte.
_AT_ONCE = 10_000


def check_splitter(name: str) -> None:
    """Refuses what is no name of a splitter; whether its package is there, `build_splitter` says.

    Raises:
      UserError: see above.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = f'{RULES!r}, {PYSBD!r}, or with a language {PYSBD + ":de"!r}'
        raise UserError(_WHERE, repr(name), expected, 'choose one of them')


def build_splitter(name: str) -> Splitter:
    """The function that cuts a paragraph into sentences.

    Args:
      name: 'rules', 'pysbd' (English) or 'pysbd:LANGUAGE'.

    Raises:
      UserError: pysbd is not installed, or does not know the language.
    """
    return split_sentences if name == RULES else _Pysbd(name.partition(':')[2] or 'en')


def splitter_version(name: str) -> str:
    """What cuts the sentences of new stores, for the record: 'rules 3', 'pysbd 0.3.4'; UNKNOWN if not installed."""
    if name == RULES:
        return f'{RULES} {RULES_VERSION}'
    try:
        return f'{PYSBD} {importlib.metadata.version("pysbd")}'
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


class _Pysbd:
    """pysbd (Sadvilkar and Neumann, 2020, arXiv 2010.09657), which changes no character here either."""

    def __init__(self, language: str):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of its own code: regular expressions that are not raw strings
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
        found: list[str] = []
        for piece in _pieces(paragraph):
            # Where the rules see no end either, there is none.
            found += self._split(piece) if len(piece) < 2 * _AT_ONCE else split_sentences(piece)
        return found

    def _split(self, text: str) -> list[str]:
        """The sentences of a text; those of the rules where pysbd fails, or takes a character for a mark of its own."""
        try:
            # Not `segment`, which looks for each sentence from the beginning of the text.
            cut = self._segmenter.processor(text).process()
        except Exception:  # It is many regular expressions, one on the result of the other.
            return split_sentences(text)
        lengths = [len(''.join(sentence.split())) for sentence in cut]
        if ''.join(''.join(cut).split()) != ''.join(text.split()):
            return split_sentences(text)
        return [sentence for sentence in _cut_at(text, lengths) if sentence]


def _pieces(paragraph: str) -> Iterator[str]:
    """A long paragraph in pieces of some _AT_ONCE characters, which end where the rules end a sentence."""
    if len(paragraph) <= _AT_ONCE:
        yield paragraph
        return
    piece: list[str] = []
    size = 0
    for sentence in split_sentences(paragraph):
        piece.append(sentence)
        size += len(sentence)
        if size >= _AT_ONCE:
            yield ' '.join(piece)
            piece, size = [], 0
    if piece:
        yield ' '.join(piece)


def _cut_at(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """The text in parts of so many characters that are not white space, each stripped."""
    places = [index for index, char in enumerate(text) if not char.isspace()]
    ends = list(itertools.accumulate(lengths, initial=0))
    for first, last in itertools.pairwise(ends):
        yield text[places[first] : places[last - 1] + 1] if last > first else ''
