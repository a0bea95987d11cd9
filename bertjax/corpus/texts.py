"""The paragraphs of a corpus, in the order of its files: what a vocabulary is trained on."""

from collections.abc import Callable, Iterator, Sequence

from bertjax.corpus import identity
from bertjax.corpus.formats import read_events
from bertjax.corpus.identity import KnownText
from bertjax.corpus.quality import broken_error
from bertjax.corpus.sequences import GivenSentence
from bertjax.corpus.sources import CorpusOptions, TextPart, resolve, unweighted
from bertjax.errors import UserError
from bertjax.files.streams import Broken


def iter_texts(
    spec: str | Sequence[str],
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    note: Callable[[KnownText], object] = lambda known: None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """The paragraphs of a corpus one by one, held-out documents too.

    Broken input is left out (`build_store` reports it). Memory does not grow with the corpus.

    Args:
      spec, options: see `build.build_store`.
      note: is called for each file or dataset when it was read, for `identity.difference`.
      progress: see `formats.read_events`.

    Raises:
      UserError: nothing matches, or there is no text at all; broken input, when strict.
    """
    empty, first = True, ''
    for source in resolve(unweighted(spec), options.text_key):
        digest, broken = identity.new_digest(), []
        part = TextPart(source.kind, source.path, source.name, 0, source.size, format=source.format(options.format))
        for text in texts_of(part, options, broken, digest, progress):
            empty = False
            yield text
        first = first or next(iter(broken), '')
        note(*identity.identify([source], {(source.path, (0, source.size)): digest.hexdigest()}))
    if empty:
        raise no_text(spec, first)


def texts_of(
    part: TextPart,
    options: CorpusOptions,
    broken: list[str],
    digest=None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """The paragraphs of a part of a corpus. Its first broken input is told in `broken`; `digest` takes its bytes.

    Raises:
      UserError: broken input, when strict.
    """
    segments = options.segments > 0
    for event in read_events(part, text_key=options.text_key, progress=progress, digest=digest, segments=segments):
        if type(event) is str:
            yield event
        elif type(event) is GivenSentence:
            yield ' '.join(map(str, event.items))
        elif type(event) is Broken and options.strict:
            raise broken_error(part.path, event)
        elif type(event) is Broken and not broken:
            where = f'{part.name}:{event.line}' if event.line else part.name
            broken.append(f' ({where}: {event.kind}: {event.detail})')


def no_text(spec: str | Sequence[str], broken: str) -> UserError:
    """The error of a corpus in which nothing is text; `broken` is of the first input that is none."""
    fix = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
    return UserError('config.corpus', f'no text at all in {spec!r}{broken}', 'at least one document', fix)
