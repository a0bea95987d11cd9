"""Trains the vocabulary of a pre-training run on its corpus, or loads a vocabulary and adds the user's words."""

import collections
import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from bertjax.corpus.backend import check_beam
from bertjax.corpus.identity import KnownText
from bertjax.corpus.sources import AUTO, list_unweighted, parse_mixture, resolve_sources
from bertjax.corpus.texts import iter_texts
from bertjax.corpus.workers import Progress, text_bytes
from bertjax.errors import UserError, printable
from bertjax.files.atomic import write_atomic
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.remote.paths import user_path
from bertjax.text.added_words import insert_words, rank_candidates, read_words
from bertjax.text.special import special_layout
from bertjax.text.symbols import build_symbols, count_symbols, read_symbols
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import (
    MAX_WORDS,
    build_sentencepiece,
    build_wordpiece,
    count_words,
    train_byte_bpe,
    train_sentencepiece,
    train_wordpiece,
)
from bertjax.text.wordpiece import INSTALL_FAST, describe_fast_saving
from bertjax.workdir.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

CANDIDATES = 'candidates.txt'
COUNTS = 'counts'  # a temporary folder in the workdir for the results of Beam


def train_vocabulary(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """Trains the vocabulary that config.vocab describes on config.corpus, and saves it to WORKDIR/tokenizer.

    Raises:
      UserError: There is no text, or the vocabulary cannot be trained.
    """
    vocab, options = settings.vocab, settings.corpus_options
    parts, read = parse_mixture(settings.corpus), []
    specs = [spec for spec, _ in parts]
    # `smoothing` applies only if a weight is 'auto'. Fixed weights affect only the choice of examples.
    corpora = [[spec] for spec in specs] if any(weight == AUTO for _, weight in parts) else [specs]
    if options.format == 'ids':
        found, expected = 'nothing, with config.corpus_options.format=ids', 'the vocabulary of the ids in the corpus'
        raise UserError('config.tokenizer', found, expected, 'set config.tokenizer to its path')
    print(f'training a {vocab.family} vocabulary of {vocab.size:,} pieces on {settings.corpus}')
    if settings.beam:
        tokenizer, read = _train_on_beam(settings, corpora, workdir)
    else:
        with _show_reading(settings, specs) as count:
            texts = [
                itertools.chain.from_iterable(iter_texts(spec, options, read.append, count) for spec in corpus)
                for corpus in corpora
            ]
            tokenizer = _train(settings, texts)
    save_tokenizer(tokenizer, workdir, key=settings.vocabulary_key, text=read)
    return tokenizer


@contextlib.contextmanager
def _show_reading(settings: PretrainingSettings, specs: list[str]) -> Iterator[Callable[[int], None]]:
    """Shows the progress of reading the corpus. Yields a function that takes the number of new bytes or records."""
    sources = [
        source for spec in specs for source in resolve_sources(list_unweighted(spec), settings.corpus_options.text_key)
    ]
    in_bytes = any(source.kind == 'file' for source in sources)
    saving = describe_fast_saving(text_bytes(sources))
    # For other verbs, `build_store` prints the same hint.
    if saving and settings.run == 'vocab' and settings.vocab.family == 'wordpiece':
        print(f'{saving}: {INSTALL_FAST}')
    total = sum(source.size for source in sources)
    with Progress(total, enabled=True, in_bytes=in_bytes, title='reading the corpus for its vocabulary') as progress:
        yield lambda count: progress.add(0, count)


def _options(settings: PretrainingSettings) -> dict[str, Any]:
    """Returns the options that the trainers of WordPiece and SentencePiece vocabularies share."""
    vocab = settings.vocab
    options = {'vocab_size': vocab.size, 'lowercase': vocab.lowercase, 'unused': vocab.unused}
    return options | {'smoothing': settings.corpus_options.smoothing}


def _train(settings: PretrainingSettings, texts: list[Iterator[str]]) -> Tokenizer:
    vocab, all_texts = settings.vocab, itertools.chain.from_iterable(texts)
    if vocab.family == 'symbols':
        return build_symbols(count_symbols(all_texts), vocab_size=vocab.size, unused=vocab.unused)
    if vocab.family == 'bpe':
        return train_byte_bpe(all_texts, vocab_size=vocab.size, lowercase=vocab.lowercase, unused=vocab.unused)
    if vocab.family == 'wordpiece':
        return train_wordpiece(*texts, **_options(settings))
    model = {'model_type': vocab.model_type, 'sample_sentences': vocab.sample_sentences, 'seed': settings.seed}
    return train_sentencepiece(*texts, **_options(settings), **model)


def _beam_statistics(
    settings: PretrainingSettings, corpora: list[list[str]], workdir: pathlib.Path
) -> 'BeamTextStatistics':
    check_beam(settings.beam)
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

    return BeamTextStatistics(corpora, settings.corpus_options, settings.beam, workdir / COUNTS)


def _train_on_beam(
    settings: PretrainingSettings, corpora: list[list[str]], workdir: pathlib.Path
) -> tuple[Tokenizer, list[KnownText]]:
    """Trains the tokenizer on statistics that Beam computes, and returns the tokenizer and the texts that were read."""
    vocab = settings.vocab
    if vocab.family == 'bpe':
        fix = 'choose another config.vocab.family, or train on part of the text with run=vocab, without config.beam'
        expected = 'a vocabulary that can be trained from counts or a sample'
        raise UserError('config.beam', 'a byte-level BPE to train', expected, fix)
    statistics = _beam_statistics(settings, corpora, workdir)
    if vocab.family == 'symbols':
        counts, read = statistics.counts(count_symbols, vocab.size + len(special_layout(vocab.unused)))
        total = sum(map(collections.Counter, counts), collections.Counter())
        return build_symbols(total, vocab_size=vocab.size, unused=vocab.unused), read
    if vocab.family == 'wordpiece':
        counts, read = statistics.counts(functools.partial(count_words, lowercase=vocab.lowercase), MAX_WORDS)
        return build_wordpiece(counts, **_options(settings)), read
    sentences, read = statistics.sentences(vocab.sample_sentences, settings.seed)
    model = {'model_type': vocab.model_type, 'sample_sentences': vocab.sample_sentences}
    return build_sentencepiece(sentences, **_options(settings), **model), read


def load_configured_tokenizer(settings: PretrainingSettings, source: str) -> Tokenizer:
    """Loads the tokenizer of config.tokenizer or config.init from `source`.

    If config.vocab.family is 'symbols', `source` can also be a file with one symbol per line.

    Raises:
      UserError: The tokenizer cannot be read.
    """
    if settings.vocab.family == 'symbols' and _is_symbol_file(path := user_path(source, 'config.tokenizer')):
        return read_symbols(path)
    return load_tokenizer(source)


def _is_symbol_file(path: epath.Path) -> bool:
    """Returns whether the path names a file with one symbol per line. `read_symbols` reports a missing .txt file."""
    return path.suffix not in ('.json', '.model') and (path.is_file() or path.suffix == '.txt')


def add_words(tokenizer: Tokenizer, path: str) -> Tokenizer:
    """Returns the tokenizer with the words of a file added as pieces, and prints their number.

    Raises:
      UserError: See `text.added_words`.
    """
    words = read_words(path)
    extended, new = insert_words(tokenizer, words, path)
    appended = extended.vocab_size - tokenizer.vocab_size
    known = f'; {len(words) - new:,} are pieces already' if new < len(words) else ''
    slots = f'{new - appended:,} in [unused] slots, {appended:,} after the last piece'
    print(printable(f'{new:,} words of {path}: {slots}{known}'))
    return extended


def write_candidates(
    settings: PretrainingSettings, source: str, workdir: pathlib.Path
) -> list[tuple[str, int, list[str]]]:
    """Writes candidates for config.vocab.add to WORKDIR/candidates.txt: words of the corpus that the vocabulary splits.

    Each line has a word, its count in config.corpus and its pieces, separated by tabs. The vocabulary comes from
    `load_tokenizer(source)`.

    Returns:
      The candidates; see `text.added_words.rank_candidates`.

    Raises:
      UserError: There is no text, or the vocabulary is not a WordPiece vocabulary.
    """
    tokenizer = load_tokenizer(source)
    if tokenizer.family != 'wordpiece':
        fix = 'set config.vocab.candidates to 0'
        raise UserError('config.vocab.candidates', f'the {tokenizer.family} vocabulary {source}', 'WordPiece', fix)
    specs = [spec for spec, _ in parse_mixture(settings.corpus)]
    count_as_bert = functools.partial(count_words, lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents)
    if settings.beam:
        (counts,), _ = _beam_statistics(settings, [specs], workdir).counts(count_as_bert, MAX_WORDS)
    else:
        with _show_reading(settings, specs) as count:
            texts = (iter_texts(spec, settings.corpus_options, progress=count) for spec in specs)
            counts = count_as_bert(itertools.chain.from_iterable(texts))
    candidates = rank_candidates(counts, tokenizer, settings.vocab.candidates)
    lines = (f'{word}\t{count}\t{" ".join(pieces)}\n' for word, count, pieces in candidates)
    write_atomic(workdir / CANDIDATES, ''.join(lines))
    return candidates
