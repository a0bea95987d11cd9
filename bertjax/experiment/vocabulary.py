"""The vocabulary of a pre-training: trained on its corpus, or given and grown by words of one's own."""

import itertools
import pathlib

from etils import epath

from bertjax.corpus.sources import AUTO, parse_mixture
from bertjax.corpus.texts import iter_texts
from bertjax.errors import UserError, printable
from bertjax.experiment.own_tokenizer import save_tokenizer
from bertjax.experiment.pretraining_settings import PretrainingSettings
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import user_path
from bertjax.text.added_words import candidates, read_words, with_words
from bertjax.text.byte_bpe_training import train_byte_bpe
from bertjax.text.symbols import read_symbols, train_symbols
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import count_words, train_sentencepiece, train_wordpiece

CANDIDATES = 'candidates.txt'


def train_vocabulary(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """Trains the vocabulary of config.vocab on config.corpus and saves it to WORKDIR/tokenizer.

    Raises:
      UserError: no text, or a vocabulary that cannot be trained.
    """
    vocab, options = settings.vocab, settings.corpus_options
    print(f'training a {vocab["family"]} vocabulary of {vocab["size"]:,} pieces on {settings.corpus}')
    parts, read = parse_mixture(settings.corpus), []
    each = [iter_texts(spec, options, read.append) for spec, _ in parts]
    # By size, or with numbers for weights, all text is one: what is rare in the examples is not rare in the language.
    texts = each if any(weight == AUTO for _, weight in parts) else [itertools.chain.from_iterable(each)]
    shared = {'vocab_size': vocab['size'], 'lowercase': vocab['lowercase'], 'unused': vocab['unused']}
    if options.format == 'ids':
        expected = 'the vocabulary whose ids the corpus holds'
        raise UserError('config.tokenizer', 'nothing, with config.corpus_options.format=ids', expected, 'name it')
    if vocab['family'] == 'symbols':
        all_texts = itertools.chain.from_iterable(texts)
        tokenizer = train_symbols(all_texts, vocab_size=vocab['size'], unused=vocab['unused'])
    elif vocab['family'] == 'bpe':
        tokenizer = train_byte_bpe(itertools.chain.from_iterable(texts), **shared)
    elif vocab['family'] == 'wordpiece':
        tokenizer = train_wordpiece(*texts, **shared, smoothing=options.smoothing)
    else:
        tokenizer = train_sentencepiece(
            *texts,
            **shared,
            smoothing=options.smoothing,
            model_type=vocab['model_type'],
            seed=settings.recorded['seed'],
            sample_sentences=vocab['sample_sentences'],
        )
    save_tokenizer(tokenizer, workdir, key=settings.vocabulary_key, text=read)
    return tokenizer


def load_given(settings: PretrainingSettings, given: str) -> Tokenizer:
    """The tokenizer that config.tokenizer or config.init names; with config.vocab.family=symbols it may be a file
    with a symbol a line.

    Raises:
      UserError: what cannot be read.
    """
    if settings.vocab['family'] == 'symbols' and _of_lines(user_path(given, 'config.tokenizer')):
        return read_symbols(given)
    return load_tokenizer(given)


def _of_lines(path: epath.Path) -> bool:
    """Whether it is, or by its name was meant to be, a file with a symbol a line: no folder, no file of a tokenizer."""
    return path.suffix not in ('.json', '.model') and (path.is_file() or path.suffix == '.txt')


def words_added(tokenizer: Tokenizer, path: str) -> Tokenizer:
    """The tokenizer with the words of a file as pieces; says how many there are.

    Raises:
      UserError: see `text.added_words`.
    """
    words = read_words(path)
    grown, new = with_words(tokenizer, words, path)
    behind = grown.vocab_size - tokenizer.vocab_size
    known = f'; {len(words) - new:,} are pieces already' if new < len(words) else ''
    where = f'{new - behind:,} in [unused] slots, {behind:,} behind the last piece'
    print(printable(f'{new:,} words of {path}: {where}{known}'))
    return grown


def write_candidates(
    settings: PretrainingSettings, given: str, workdir: pathlib.Path
) -> list[tuple[str, int, list[str]]]:
    """Writes WORKDIR/candidates.txt: words of config.corpus that the vocabulary `given` splits, for config.vocab.add.

    A line has a word, how often it occurs, and its pieces, with tabs between.

    Returns:
      What was written, see `text.added_words.candidates`.

    Raises:
      UserError: no text; a vocabulary other than WordPiece, which has no words.
    """
    tokenizer = load_tokenizer(given)
    if tokenizer.family != 'wordpiece':
        mend = 'leave config.vocab.candidates 0'
        raise UserError('config.vocab.candidates', f'the {tokenizer.family} vocabulary {given}', 'WordPiece', mend)
    specs = [spec for spec, _ in parse_mixture(settings.corpus)]
    texts = itertools.chain.from_iterable(iter_texts(spec, settings.corpus_options) for spec in specs)
    found = candidates(count_words(texts, tokenizer.lowercase), tokenizer, settings.vocab['candidates'])
    lines = (f'{word}\t{count}\t{" ".join(pieces)}\n' for word, count, pieces in found)
    write_atomic(workdir / CANDIDATES, ''.join(lines))
    return found
