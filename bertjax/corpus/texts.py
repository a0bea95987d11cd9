"""Yields the paragraphs of a corpus in the order of its files, to train a vocabulary."""

from collections.abc import Callable, Iterator, Sequence

from bertjax.corpus import identity
from bertjax.corpus.formats import read_events
from bertjax.corpus.identity import KnownText
from bertjax.corpus.quality import broken_error
from bertjax.corpus.sequences import SequenceSentence
from bertjax.corpus.sources import CorpusOptions, TextPart, list_unweighted, resolve_sources
from bertjax.errors import UserError
from bertjax.files.streams import Broken


def iter_texts(
    spec: str | Sequence[str],
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    note: Callable[[KnownText], object] = lambda known: None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """Yields the paragraphs of a corpus, including held-out documents.

    Unless strict, broken input is skipped (`build_store` reports it). Memory does not grow with the corpus.

    Args:
      spec, options: See `build.build_store`.
      note: A function that is called with the `KnownText` of each file or dataset after it was read.
        `identity.describe_difference` later compares these with the files.
      progress: See `formats.read_events`.

    Raises:
      UserError: No file matches, there is no text, or the input is broken (if strict).
    """
    empty, first_broken = True, ''
    for source in resolve_sources(list_unweighted(spec), options.text_key):
        digest, broken = identity.new_digest(), []
        part = TextPart(source.kind, source.path, source.name, 0, source.size, format=source.format(options.format))
        for text in iter_part_texts(part, options, broken, digest, progress):
            empty = False
            yield text
        first_broken = first_broken or next(iter(broken), '')
        note(*identity.identify([source], {(source.path, (0, source.size)): digest.hexdigest()}))
    if empty:
        raise no_text_error(spec, first_broken)


def iter_part_texts(
    part: TextPart,
    options: CorpusOptions,
    broken: list[str],
    digest=None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """Yields the paragraphs of a part of a corpus.

    Args:
      part: The part to read.
      options: The options for reading text.
      broken: A list that receives a description of the first broken input.
      digest: A hash object that is updated with the bytes of the part.
      progress: See `formats.read_events`.

    Raises:
      UserError: The input is broken (if strict).
    """
    segments = options.segments > 0
    for event in read_events(part, text_key=options.text_key, progress=progress, digest=digest, segments=segments):
        if type(event) is str:
            yield event
        elif type(event) is SequenceSentence:
            yield ' '.join(map(str, event.items))
        elif type(event) is Broken and options.strict:
            raise broken_error(part.path, event)
        elif type(event) is Broken and not broken:
            where = f'{part.name}:{event.line}' if event.line else part.name
            broken.append(f' ({where}: {event.kind}: {event.detail})')


def no_text_error(spec: str | Sequence[str], broken: str) -> UserError:
    """Returns the error for a corpus without text. `broken` describes its first broken input."""
    fix = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
    return UserError('config.corpus', f'no text at all in {spec!r}{broken}', 'at least one document', fix)
