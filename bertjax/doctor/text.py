"""The tokenizer and the corpus of a pre-training: as its store has them, else a part of the text is read."""

import contextlib
import dataclasses
import itertools
import logging
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from bertjax.corpus import reading, sequences
from bertjax.corpus.build import build_store
from bertjax.corpus.formats import Document, read_events
from bertjax.corpus.quality import (
    DUPLICATE_LINES,
    LIKENESS,
    LIKENESS_WITHIN,
    PIECES_PER_WORD,
    UNKNOWN,
    find_warnings,
    long_documents,
)
from bertjax.corpus.sources import CorpusOptions, TextPart, TextSource, parse_mixture, resolve
from bertjax.corpus.workers import text_bytes
from bertjax.doctor.check import FAIL, OK, WARN, Check, looking_at
from bertjax.errors import UserError
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import WeightedStore, huggingface_directory, open_stores, store_directories
from bertjax.pretrain.vocabulary import load_given_tokenizer
from bertjax.report.run_record import quiet
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import train_wordpiece
from bertjax.text.wordpiece import INSTALL_FAST, WordPieceTokenizer, saved_by_fast
from bertjax.workdir.tokenizer import FOLDER

_CHARACTERS = 3_000_000  # that are read of a corpus without a store
_SOURCES = 12  # of which
_PIECES = 4096  # of a vocabulary for them, where the run has none yet
_COPIES = 0.1  # of the documents: a tenth of them keeps a model from learning, of which a hundredth is a warning
_ENOUGH = 10**6  # tokens held out: how many these are of a part says nothing


def tokenizer_of(settings: PretrainingSettings, folder: pathlib.Path) -> Tokenizer | None:
    """The workdir's own, else the one that config.tokenizer or config.init gives; None where one is to be trained.

    Raises:
      UserError: one that cannot be read.
    """
    if (folder / FOLDER).exists():
        return load_tokenizer(folder / FOLDER)
    given = settings.tokenizer or (settings.init and huggingface_directory(settings.init))
    return load_given_tokenizer(settings, given) if given else None


def vocab_size(settings: PretrainingSettings, folder: pathlib.Path) -> int:
    """Pieces of the tokenizer, or of the one that will be trained."""
    with contextlib.suppress(UserError):  # which `tokenizer` tells
        if own := tokenizer_of(settings, folder):
            return own.vocab_size
    return settings.vocab.size


@looking_at('tokenizer')
def tokenizer(settings: PretrainingSettings, folder: pathlib.Path) -> Iterator[Check]:
    """Whether there is a vocabulary, or one can be trained."""
    found = tokenizer_of(settings, folder)
    if found is None and settings.data:
        fix = f'--config.tokenizer={pathlib.Path(settings.data).parent / FOLDER}, perhaps'
        yield Check('tokenizer', FAIL, 'nothing, with a store in config.data', f'give the one of the store: {fix}')
    elif found is None:
        yield Check('tokenizer', OK, f'one of {settings.vocab.size:,} pieces will be trained on config.corpus')
    else:
        case = 'lower-case' if found.lowercase else 'cased'
        yield Check('tokenizer', OK, f'{found.family}, {found.vocab_size:,} pieces, {case}')


@looking_at('corpus')
def corpus(settings: PretrainingSettings, folder: pathlib.Path) -> Iterator[Check]:
    """What is in the text, and what of it will impair the training."""
    stores = stores_of(settings, folder)
    if stores:
        for number, weighted in enumerate(stores):
            report, name = weighted.store.report, f'corpus {number}: ' if len(stores) > 1 else ''
            counts = f'{report["documents"]:,} documents, {report["heldout_documents"]:,} of them held out'
            yield from _judged(
                f'{name}{counts}, {report["tokens"]:,} tokens', [*report['warnings'], *long_documents(weighted.store)]
            )
        return
    own = None if settings.data else tokenizer_of(settings, folder)
    for spec, _ in parse_mixture(settings.corpus):
        yield from _sampled(spec, settings, own)


def stores_of(settings: PretrainingSettings, folder: pathlib.Path) -> list[WeightedStore]:
    """The token stores, where they are built.

    Raises:
      UserError: one is damaged, or of another tokenizer.
    """
    places = [pathlib.Path(settings.data).expanduser()] if settings.data else store_directories(settings, folder)
    own = tokenizer_of(settings, folder)
    if own is None or not (settings.data or all((place / 'manifest.json').exists() for place in places)):
        return []
    return open_stores(settings, folder, own, verify=False)


def _judged(found: str, warnings: list[str]) -> Iterator[Check]:
    if not warnings:
        yield Check('corpus', OK, found)
    for text in warnings:
        yield Check('corpus', WARN, text.rstrip('.'))


def _sampled(spec: str, settings: PretrainingSettings, own: Tokenizer | None) -> Iterator[Check]:
    options, family = settings.corpus_options, own.family if own else settings.vocab.family
    found = resolve(spec, options.text_key)
    size, count = sum(source.size for source in found), len(found)
    what = f'{spec}: {count:,} file{"s"[: count != 1]}' + (f', {size / 1e6:,.1f} MB' if size else '')
    if options.format in sequences.FORMATS:
        yield Check('corpus', OK, what)
        return
    with tempfile.TemporaryDirectory() as scratch, quiet(), _without_warnings():
        path, part = pathlib.Path(scratch, 'part.txt'), ''.join(_documents(found, options))
        path.write_text(part, encoding='utf-8', errors='replace')
        known = own or train_wordpiece(part.splitlines(), vocab_size=_PIECES, lowercase=True)
        plain = dataclasses.replace(options, format='text', workers=1)
        facts: dict[str, Any] = build_store([str(path)], pathlib.Path(scratch, 'store'), known, plain, progress=False)
    # Of a part, and of a vocabulary that the run will not have, some figures say nothing.
    facts |= {'heldout_documents': int(options.heldout > 0), 'heldout_tokens': _ENOUGH, 'tokens': _ENOUGH**2}
    facts |= {} if own else {'pieces_per_word': 1.0, 'unknown_rate': 0.0}
    read = f'{what}; read {len(part) / 1e6:.1f} MB of it, {facts["documents"]:,} documents'
    yield from _judged(read, find_warnings(facts, options))
    saving = saved_by_fast(text_bytes(found))
    if saving and family == WordPieceTokenizer.family:
        yield Check('corpus', WARN, saving, INSTALL_FAST)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Without those about a small vocabulary, which only a part of the text has."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _documents(found: list[TextSource], options: CorpusOptions) -> Iterator[str]:
    """Documents from the beginnings of some sources, a line a paragraph, with blank lines between them."""
    chosen = reading.choose(found)[0] if options.format == 'auto' else found
    some = chosen[:: -(-len(chosen) // _SOURCES)]
    for source in some:
        left = _CHARACTERS // len(some)
        part = TextPart(source.kind, source.path, source.name, 0, source.size, format=source.format(options.format))
        for event in read_events(part, text_key=options.text_key, segments=False):
            if isinstance(event, str):
                left -= len(event)
                yield ' '.join(event.split()) + '\n'
            if event is Document.END or left < -_CHARACTERS:  # one may be as long as its file
                yield '\n'
                if left < 0:
                    break


def causes(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What of a store's report keeps a masked language model from learning, and the next step."""
    copies = report['duplicate_documents'] / max(1, report['documents_read'])
    lines = report['duplicate_lines'] / max(1, report['lines'])
    likeness, within = report['neighbour_likeness'], report['neighbour_likeness_within']
    if copies > _COPIES:
        yield f'{copies:.0%} of its documents are copies', '--config.corpus_options.drop_duplicates=True'
    if lines > DUPLICATE_LINES:
        yield f'{lines:.0%} of its lines are copies', 'clean away what repeats'
    if (likeness is not None and likeness < LIKENESS) or (within is not None and within < LIKENESS_WITHIN):
        yield 'its sentences are shuffled', 'give documents whole, their sentences in order'
    if report['unknown_rate'] > UNKNOWN:
        yield f'{report["unknown_rate"]:.0%} of its tokens are [UNK]', 'take a vocabulary that was trained on this text'
    elif report['pieces_per_word'] > PIECES_PER_WORD:
        found = f'the vocabulary cuts its words into {report["pieces_per_word"]:.1f} pieces'
        yield found, "train one on this text (--config.tokenizer='', config.vocab.size)"


def joined(found: Iterator[tuple[str, str]]) -> tuple[str, str]:
    """All of `causes` as one: what, and the next steps."""
    whats, mends = zip(*itertools.chain(found, [('', '')]), strict=True)
    return ' and '.join(filter(None, whats)), ', '.join(filter(None, mends))
