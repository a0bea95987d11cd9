"""Yields the paragraphs of a corpus in the order of its files, to train a vocabulary."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bertjax.corpus import identity
from bertjax.corpus.formats import read_events
from bertjax.corpus.identity import KnownText
from bertjax.corpus.quality import broken_error
from bertjax.corpus.sequences import SequenceSentence
from bertjax.corpus.sources import CorpusOptions, TextPart, resolve_sources
from bertjax.errors import UserError
from bertjax.files.streams import Broken


def iter_texts(
    spec: str | Sequence[str],
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    note: Callable[[KnownText], object] = lambda known: None,
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """Yields the paragraphs of a corpus, including held-out documents.

    If `options.strict` is False, broken input is skipped, because `build_store` reports it.

    Args:
      spec, options: See `build.build_store`.
      note: A function that is called with the `KnownText` of each file or dataset, after its last paragraph.
      progress: See `formats.read_events`.

    Raises:
      UserError: A source is invalid (see `resolve_sources`), there is no text, or the input is broken (if strict).
    """
    record = new_record()
    for source in resolve_sources(spec, options):
        yield from iter_part_texts([source.whole(options.format)], options, record, progress)
        note(*identity.identify([source], {(source.path, (0, source.size)): record['digests'][-1]}))
    if record['empty']:
        raise no_text_error(spec, record['broken'])


def new_record() -> dict[str, Any]:
    """Returns a new record, in which `iter_part_texts` stores the hashes of parts and the first broken input."""
    return {'empty': True, 'digests': [], 'broken': ''}


def iter_part_texts(
    parts: Iterable[TextPart],
    options: CorpusOptions,
    record: dict[str, Any],
    progress: Callable[[int], object] | None = None,
) -> Iterator[str]:
    """Yields the paragraphs of parts of a corpus, and updates `record`. For `progress`, see `formats.read_events`.

    Raises:
      UserError: The input is broken (if strict).
    """
    for part in parts:
        digest = identity.new_digest()
        for event in read_events(part, options, progress=progress, digest=digest):
            if type(event) is str:
                record['empty'] = False
                yield event
            elif type(event) is SequenceSentence:
                record['empty'] = False
                yield ' '.join(map(str, event.items))
            elif type(event) is Broken and options.strict:
                raise broken_error(part.path, event)
            elif type(event) is Broken and not record['broken']:
                record['broken'] = f' ({event.located_in(part.name)}: {event.kind}: {event.detail})'
        record['digests'].append(digest.hexdigest())


def no_text_error(spec: str | Sequence[str], broken: str) -> UserError:
    """Returns the error for a corpus without text. `broken` describes the first broken input, or is ''."""
    fix = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
    return UserError('config.corpus', f'no text at all in {spec!r}{broken}', 'at least one document', fix)
