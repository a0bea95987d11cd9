"""Trains the vocabulary of a pre-training run on its corpus, or loads a vocabulary and adds the user's words."""

import collections
import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from bertjax.corpus.beam import check_beam
from bertjax.corpus.identity import KnownText
from bertjax.corpus.sources import AUTO, CorpusOptions, parse_mixture, resolve_sources
from bertjax.corpus.texts import iter_texts
from bertjax.errors import UserError, printable
from bertjax.files.atomic import write_atomic
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.progress import show_progress
from bertjax.remote.paths import user_path
from bertjax.text.added_words import check_extensible, insert_words, rank_candidates, read_words
from bertjax.text.sampling import iter_sentences, sample
from bertjax.text.special import special_layout
from bertjax.text.symbols import build_symbols, count_symbols, read_symbols
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import MAX_WORDS, build_sentencepiece, build_wordpiece, count_words, train_byte_bpe
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import save_tokenizer

CANDIDATES = 'candidates.txt'
COUNTS = 'counts'  # a temporary folder in the workdir for the results of Beam


def train_vocabulary(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """Trains a vocabulary on config.corpus, as config.vocab describes, and saves it to WORKDIR/tokenizer.

    Raises:
      UserError: There is no text, or the vocabulary cannot be trained.
    """
    vocab, parts = settings.vocab, parse_mixture(settings.corpus)
    specs = [spec for spec, _ in parts]
    # Smoothing, which applies if a weight is 'auto', needs separate statistics for each corpus.
    corpora = [[spec] for spec in specs] if any(weight == AUTO for _, weight in parts) else [specs]
    if settings.corpus_options.format == 'ids':
        found, expected = 'nothing, with config.corpus_options.format=ids', 'the vocabulary of the ids in the corpus'
        raise UserError('config.tokenizer', found, expected, 'set config.tokenizer to its path')
    if settings.corpus_options.format == 'symbols' and vocab.family != 'symbols':
        found, fix = f'{vocab.family} with config.corpus_options.format=symbols', 'set config.vocab.family=symbols'
        raise UserError('config.vocab.family', found, 'symbols, because no symbol is split into pieces', fix)
    if settings.beam and vocab.family == 'bpe':
        fix = 'choose another config.vocab.family, or train on part of the text with run=vocab, without config.beam'
        expected = 'a vocabulary that can be trained from counts or a sample'
        raise UserError('config.beam', 'a byte-level BPE to train', expected, fix)
    with _text_statistics(settings, corpora, workdir) as statistics:  # raises if the corpus is missing
        print(f'training a {vocab.family} vocabulary of {vocab.size:,} pieces on {settings.corpus}')
        tokenizer, read = _train(settings, statistics)
    save_tokenizer(tokenizer, workdir, key=settings.vocabulary_key, text=read)
    return tokenizer


class _TextStatistics:
    """Computes the statistics of the text in this process, with the same methods as `BeamTextStatistics`."""

    def __init__(self, corpora: list[list[str]], options: CorpusOptions, show: Callable[[int], None]):
        self.read: list[KnownText] = []
        self.texts = [
            itertools.chain.from_iterable(iter_texts(spec, options, self.read.append, show) for spec in specs)
            for specs in corpora
        ]

    def counts(
        self, count: Callable[[Iterable[str]], dict[str, int]], limit: int
    ) -> tuple[list[dict[str, int]], list[KnownText]]:
        del limit  # only Beam needs it: `count_words` and `build_symbols` have their own limits
        return [count(texts) for texts in self.texts], self.read

    def sentences(self, size: int, seed: int) -> tuple[list[tuple[list[str], int]], list[KnownText]]:
        return [sample(iter_sentences(texts), size, seed) for texts in self.texts], self.read


@contextlib.contextmanager
def _text_statistics(settings: PretrainingSettings, corpora: list[list[str]], workdir: pathlib.Path) -> Iterator[Any]:
    """Yields the statistics of the text. If config.beam is set, Beam computes them. Otherwise, progress is shown."""
    options = settings.corpus_options
    if settings.beam:
        check_beam(settings.beam)
        from bertjax.corpus.beam.vocabulary import BeamTextStatistics

        yield BeamTextStatistics(corpora, options, settings.beam, workdir / COUNTS)
        return
    specs = itertools.chain.from_iterable(corpora)
    sources = [source for spec in specs for source in resolve_sources(spec, options)]
    in_bytes, total = any(source.kind == 'file' for source in sources), sum(source.size for source in sources)
    with show_progress('reading the corpus for its vocabulary', total, lines=True, in_bytes=in_bytes) as advance:
        yield _TextStatistics(corpora, options, advance)


def _train(settings: PretrainingSettings, statistics: Any) -> tuple[Tokenizer, list[KnownText]]:
    """Trains the tokenizer, and returns it with the records of the files that were read."""
    vocab = settings.vocab
    size = {'vocab_size': vocab.size, 'unused': vocab.unused}
    options = {**size, 'lowercase': vocab.lowercase}
    smoothing = settings.corpus_options.smoothing
    if vocab.family == 'bpe':
        return train_byte_bpe(itertools.chain.from_iterable(statistics.texts), **options), statistics.read
    if vocab.family == 'symbols':
        counts, read = statistics.counts(count_symbols, vocab.size + len(special_layout(vocab.unused)))
        return build_symbols(sum(map(collections.Counter, counts), collections.Counter()), **size), read
    if vocab.family == 'wordpiece':
        counts, read = statistics.counts(functools.partial(count_words, lowercase=vocab.lowercase), MAX_WORDS)
        return build_wordpiece(counts, **options, smoothing=smoothing), read
    sentences, read = statistics.sentences(vocab.sample_sentences, settings.seed)
    model = {'model_type': vocab.model_type, 'sample_sentences': vocab.sample_sentences}
    return build_sentencepiece(sentences, **options, **model, smoothing=smoothing), read


def vocabulary_source(settings: PretrainingSettings) -> str:
    """Returns the path of the existing vocabulary of a run; '' if the run trains a vocabulary.

    The path is that of config.tokenizer, else the directory of config.init, else that of the teacher. Raises a
    UserError if there is no such directory.
    """
    if settings.tokenizer or settings.init:
        return settings.tokenizer or huggingface_directory(settings.init)
    teacher = settings.distill and settings.distill.teacher
    return huggingface_directory(teacher, 'config.distill.teacher') if teacher else ''


def load_configured_tokenizer(settings: PretrainingSettings, source: str) -> Tokenizer:
    """Loads the tokenizer from `source`; see `vocabulary_source`.

    If config.vocab.family is 'symbols', `source` can also be a file with one symbol per line. Raises a UserError if the
    tokenizer cannot be read.
    """
    if settings.vocab.family == 'symbols':
        path = user_path(source, 'config.tokenizer')
        # `read_symbols` reports a missing .txt file.
        if path.suffix not in ('.json', '.model') and (path.is_file() or path.suffix == '.txt'):
            return read_symbols(path)
    return load_tokenizer(source)


def check_existing_vocabulary(settings: PretrainingSettings, flag_keys: Collection[str]) -> None:
    """Raises a UserError if the user sets the family or the case of config.vocab, but an existing vocabulary differs.

    The values of a recipe are for a new vocabulary. `flag_keys` are the config keys that the user set.
    """
    source = settings.tokenizer or settings.init
    fixes = {
        'family': 'leave it out: the vocabulary exists',
        'lowercase': 'leave it out, or set do_lower_case in the tokenizer_config.json beside a vocab.txt',
    }
    names = [name for name in fixes if f'vocab.{name}' in flag_keys]
    if source and names:
        tokenizer = load_configured_tokenizer(settings, vocabulary_source(settings))
        for name in names:
            found, existing = getattr(settings.vocab, name), getattr(tokenizer, name)
            if found != existing:
                raise UserError(f'config.vocab.{name}', str(found), f'{existing}, as in {source}', fixes[name])


def add_words(tokenizer: Tokenizer, path: str) -> Tokenizer:
    """Returns the tokenizer with the words of a file as further pieces, and prints their number; see `insert_words`."""
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

    Each line has three fields, separated by tabs: a word, its count in config.corpus, and its pieces, separated by
    spaces. The same fields are returned. `source` is the path of the vocabulary; see `load_tokenizer`.

    Raises:
      UserError: There is no text, or the vocabulary is not a WordPiece vocabulary with BERT's settings.
    """
    tokenizer = load_tokenizer(source)
    check_extensible(tokenizer, 'config.vocab.candidates', 'set config.vocab.candidates to 0')
    specs = [spec for spec, _ in parse_mixture(settings.corpus)]
    count = functools.partial(count_words, lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents)
    with _text_statistics(settings, [specs], workdir) as statistics:
        (counts,), _ = statistics.counts(count, MAX_WORDS)
    candidates = rank_candidates(counts, tokenizer, settings.vocab.candidates)
    lines = (f'{word}\t{count}\t{" ".join(pieces)}\n' for word, count, pieces in candidates)
    write_atomic(workdir / CANDIDATES, ''.join(lines))
    return candidates
