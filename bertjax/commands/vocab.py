"""run=vocab: train the vocabulary WORKDIR/tokenizer on config.corpus, or list words to add to an existing one."""

import pathlib
import shlex

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.errors import UserError
from bertjax.files.paths import display_path
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.vocabulary import CANDIDATES, train_vocabulary, vocabulary_source, write_candidates
from bertjax.terminal import Console
from bertjax.workdir.lock import lock_workdir
from bertjax.workdir.tokenizer import check_replaceable

VERB = Verb(needs='corpus', teacher=False, devices=False)

_MAX_PRINTED = 12  # the maximal number of printed candidates


def run(config: ConfigDict, workdir: str) -> None:
    """Trains a vocabulary and writes it to WORKDIR/tokenizer, which transformers and --config.tokenizer read.

    With config.vocab.candidates the verb instead writes WORKDIR/candidates.txt, a list of the words of the corpus that
    the vocabulary of config.tokenizer or config.init splits. Edit the list, and then pass it to config.vocab.add.

    Raises:
      UserError: There is no text, the size is impossible, the workdir has checkpoints, a vocabulary is given although
        one is trained, or there is no WordPiece vocabulary for config.vocab.candidates.
    """
    settings, folder = pretraining_settings(config), pathlib.Path(workdir)
    check_outside(settings.corpus, folder, [*WORKDIR_FILES, CANDIDATES])
    directory = folder / 'tokenizer'
    with lock_workdir(folder):
        if settings.vocab.candidates:
            _list_candidates(settings, folder)
            return
        unused = {'tokenizer': settings.tokenizer, 'init': settings.init, 'vocab.add': settings.vocab.add}
        for key, value in unused.items():
            if value:
                fix = 'leave it empty; run=corpus adds the words of config.vocab.add to a given vocabulary'
                raise UserError(f'config.{key}', repr(value), "'', because run=vocab trains a new vocabulary", fix)
        settings.check_new_vocabulary()
        check_replaceable(folder)
        tokenizer = train_vocabulary(settings, folder)
    print(f'{tokenizer.vocab_size:,} pieces in {directory}, fingerprint {tokenizer.fingerprint[:16]}')
    print(f'last learned pieces: {" ".join(map(tokenizer.piece_text, tokenizer.pieces[-12:]))}')
    print(f'use it with --config.tokenizer={shlex.quote(display_path(directory))}')


def _list_candidates(settings: PretrainingSettings, folder: pathlib.Path) -> None:
    source = vocabulary_source(settings)
    if not source:
        fix = 'for example --config.init=out/tiny'
        raise UserError('config.vocab.candidates', 'no vocabulary', 'config.init or config.tokenizer', fix)
    candidates = write_candidates(settings, source, folder)
    console = Console(highlight=False, soft_wrap=True)
    for word, count, pieces in candidates[:_MAX_PRINTED]:
        console.print(f'{word}  {count:,} times  {" ".join(pieces)}', markup=False)
    path = folder / CANDIDATES
    if not candidates:
        console.print(f'no words in {path}: the vocabulary splits no word that occurs more than once', markup=False)
        return
    console.print(
        f'{len(candidates):,} words in {path}: remove entries that are not words, then use '
        f'--config.vocab.add={shlex.quote(display_path(path))}',
        markup=False,
    )
