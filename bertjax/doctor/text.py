"""Checks the tokenizer and the corpus of a pre-training run. Without token stores, a sample of the text is checked."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from bertjax.corpus import quality, reading, sequences
from bertjax.corpus.build import build_store
from bertjax.corpus.formats import Document, read_events
from bertjax.corpus.sources import CorpusOptions, TextSource, parse_mixture, resolve_sources
from bertjax.corpus.store import read_manifest
from bertjax.corpus.workers import text_bytes
from bertjax.doctor.check import FAIL, OK, WARN, Check, check
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import has_stores, open_stores, store_directories, tokenizer_flag
from bertjax.pretrain.vocabulary import check_existing_vocabulary
from bertjax.pretrain.warm_start import embedding_rows, load_existing_tokenizer
from bertjax.report.run_record import quiet
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.vocabulary import train_byte_bpe, train_wordpiece
from bertjax.text.wordpiece import INSTALL_FAST, WordPieceTokenizer, describe_fast_saving
from bertjax.workdir.lock import has_checkpoints

_CHARACTERS = 3_000_000  # the approximate number of characters in the sample of a large corpus
_SOURCES = 12  # the maximum number of sources in a sample
_PIECES = 4096  # the vocabulary size for the sample if the run has no vocabulary yet
_COPIES = 0.1  # a larger share of copied documents prevents learning; the corpus report warns above 0.01
_ENOUGH = 10**6  # a number of held-out tokens that causes no warning


@check('tokenizer')
def tokenizer(settings: PretrainingSettings, folder: pathlib.Path, flag_keys: Collection[str] = ()) -> Iterator[Check]:
    """Loads the vocabulary, or says that the run will train one. Fails if config.data is set without a vocabulary."""
    if not has_checkpoints(folder):
        check_existing_vocabulary(settings, flag_keys)
    existing = load_existing_tokenizer(settings, folder)
    if existing is not None:
        embedding_rows(settings, folder, existing)  # raises if the number of pieces does not match the model
        case = 'lower-case' if existing.lowercase else 'cased'
        yield Check('tokenizer', OK, f'{existing.family}, {existing.vocab_size:,} pieces, {case}')
    elif settings.data:
        fix = f'give the tokenizer of the store, perhaps {tokenizer_flag(settings.data)}'
        yield Check('tokenizer', FAIL, 'no tokenizer for the store in config.data', fix)
    else:
        yield Check('tokenizer', OK, f'a vocabulary of {settings.vocab.size:,} pieces will be trained on config.corpus')


@check('corpus')
def corpus(settings: PretrainingSettings, folder: pathlib.Path) -> Iterator[Check]:
    """Yields the warnings of the corpus report, or the size of the text if there are no warnings.

    Yields nothing if config.data is set without a tokenizer.
    """
    existing = load_existing_tokenizer(settings, folder)
    if settings.data and existing is None:  # the check of the tokenizer reports this
        return
    if existing is None or not _reads_stores(settings, folder, existing):
        for spec, _ in parse_mixture(settings.corpus):
            yield from _check_sample(spec, settings, existing)
        return
    stores = open_stores(settings, folder, existing, verify=False)
    for number, store in enumerate(stores):
        report, name = store.report, f'corpus {number}: ' if len(stores) > 1 else ''
        counts = f'{report["documents"]:,} documents, {report["heldout_documents"]:,} of them held out'
        message = f'{name}{counts}, {report["tokens"]:,} tokens'
        yield from _warnings_or(message, [*report['warnings'], *quality.warn_long_documents(store)])


def _reads_stores(settings: PretrainingSettings, folder: pathlib.Path, tokenizer: Tokenizer) -> bool:
    """Whether the run reads existing stores. Before its first checkpoint, it replaces those of another tokenizer."""
    if settings.data:
        return True
    if not has_stores(settings, folder):
        return False
    directories = store_directories(settings, folder)
    fingerprints = {read_manifest(path)['tokenizer']['fingerprint'] for path in directories}
    return has_checkpoints(folder) or fingerprints == {tokenizer.fingerprint}


def _warnings_or(message: str, warnings: list[str]) -> list[Check]:
    return [Check('corpus', WARN, text.rstrip('.')) for text in warnings] or [Check('corpus', OK, message)]


def _describe_size(sources: Sequence[TextSource]) -> str:
    size, count = sum(source.size for source in sources), len(sources)
    if all(source.kind == 'tfds' for source in sources):
        return f'{size:,} records'
    return f'{count:,} file{"s"[: count != 1]}' + (f', {size / 1e6:,.1f} MB' if size else '')


def _check_sample(spec: str, settings: PretrainingSettings, existing: Tokenizer | None) -> Iterator[Check]:
    options, sources = settings.corpus_options, resolve_sources(spec, settings.corpus_options)
    message = f'{spec}: {_describe_size(sources)}'
    if options.format in sequences.FORMATS:
        yield Check('corpus', OK, message)
        return
    with tempfile.TemporaryDirectory() as scratch, quiet():
        path, sample = pathlib.Path(scratch, 'sample.txt'), ''.join(_sample(sources, options))
        path.write_text(sample, encoding='utf-8', errors='replace')
        # Byte-level BPE, unlike WordPiece, can be trained on a text without words.
        train = train_wordpiece if settings.vocab.family == WordPieceTokenizer.family else train_byte_bpe
        sample_tokenizer = existing or train(sample.splitlines(), vocab_size=_PIECES, lowercase=True)
        plain = dataclasses.replace(options, format='text', workers=1)
        facts: dict[str, Any] = build_store(
            [str(path)], pathlib.Path(scratch, 'store'), sample_tokenizer, plain, progress=False
        )
    # Replace values that mean nothing for a sample, or for a vocabulary that the run will not use.
    facts |= {'heldout_documents': int(options.heldout > 0), 'heldout_tokens': _ENOUGH, 'tokens': _ENOUGH**2}
    facts |= {} if existing else {'pieces_per_word': 1.0, 'unknown_rate': 0.0}
    message += f'; sampled {len(sample) / 1e6:.1f} million characters, {facts["documents"]:,} documents'
    yield from _warnings_or(message, quality.find_warnings(facts, options))
    saving = describe_fast_saving(text_bytes(sources))
    if saving and (existing.family if existing else settings.vocab.family) == WordPieceTokenizer.family:
        yield Check('corpus', WARN, saving, INSTALL_FAST)


def _sample(sources: list[TextSource], options: CorpusOptions) -> Iterator[str]:
    """Yields the first documents of some sources, with one line per paragraph and a blank line between documents."""
    chosen = reading.choose_readings(sources)[0] if options.format == 'auto' else sources
    sampled = chosen[:: -(-len(chosen) // _SOURCES)]
    for source in sampled:
        left = _CHARACTERS // len(sampled)
        for event in read_events(source.whole(options.format), options):
            if isinstance(event, str):
                left -= len(event)
                yield ' '.join(event.split()) + '\n'
            if event is Document.END or left < -_CHARACTERS:  # a document can be a large file, so it is cut
                yield '\n'
                if left < 0:
                    break


def learning_obstacles(report: dict[str, Any]) -> dict[str, str]:
    """Returns the obstacles to learning in a store's report, as {obstacle: next step}."""
    copies = report['duplicate_documents'] / max(1, report['documents_read'])
    lines = report['duplicate_lines'] / max(1, report['lines'])
    likeness, within = report['neighbour_likeness'], report['neighbour_likeness_within']
    is_shuffled = likeness is not None and likeness < quality.LIKENESS
    is_shuffled |= within is not None and within < quality.LIKENESS_WITHIN
    unknown, pieces = report['unknown_rate'], report['pieces_per_word']
    obstacles = {}
    if copies > _COPIES:
        obstacles[f'{copies:.0%} of the documents are copies'] = '--config.corpus_options.drop_duplicates=True'
    if lines > quality.DUPLICATE_LINES:
        obstacles[f'{lines:.0%} of the lines are copies'] = 'remove the repeated lines'
    if is_shuffled:
        obstacles['the sentences are shuffled'] = 'give whole documents with their sentences in order'
    if unknown > quality.UNKNOWN:
        obstacles[f'{unknown:.0%} of the tokens are [UNK]'] = 'use a vocabulary trained on this text'
    elif pieces > quality.PIECES_PER_WORD:
        fix = 'raise config.vocab.size if the vocabulary was trained on this text; else train one on it '
        fix += "(--config.tokenizer='') or, with config.init, add words (config.vocab.add)"
        obstacles[f'the vocabulary cuts words into {pieces:.1f} pieces on average'] = fix
    return obstacles
