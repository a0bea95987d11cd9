"""run=vocab: trains the vocabulary of config.vocab on config.corpus into WORKDIR/tokenizer."""

import pathlib

from ml_collections import ConfigDict

from bertjax.corpus.apart import WORKDIR_FILES, check_outside
from bertjax.experiment.own_tokenizer import check_replaceable
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.experiment.text import train_vocabulary
from bertjax.files.atomic import exclusive


def run(config: ConfigDict, workdir: str) -> None:
    """Writes WORKDIR/tokenizer, which transformers and --config.tokenizer read.

    Raises:
      UserError: no text, a size that cannot be, or a workdir with checkpoints.
    """
    settings, folder = pretraining_settings(config), pathlib.Path(workdir)
    check_outside(settings.corpus, folder, WORKDIR_FILES)
    folder.mkdir(parents=True, exist_ok=True)
    directory = folder / 'tokenizer'
    with exclusive(folder, 'works in this workdir'):
        check_replaceable(folder)
        tokenizer = train_vocabulary(settings, folder)
    print(f'{tokenizer.vocab_size:,} pieces in {directory}, fingerprint {tokenizer.fingerprint[:16]}')
    print(f'last learned pieces: {" ".join(tokenizer.pieces[-12:])}')
    print(f'use it with --config.tokenizer={directory}')
