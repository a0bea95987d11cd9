"""run=vocab: trains the vocabulary of config.vocab on config.corpus into WORKDIR/tokenizer."""

import pathlib

from ml_collections import ConfigDict

from bertjax.runs._text import check_replaceable, train_vocabulary


def run(config: ConfigDict, workdir: str) -> None:
    """Writes WORKDIR/tokenizer, which transformers and --config.tokenizer read.

    Raises:
      UserError: no text, a size that cannot be, or a workdir with checkpoints.
    """
    folder = pathlib.Path(workdir)
    directory = folder / 'tokenizer'
    check_replaceable(directory, folder)
    print(f'training a {config.vocab.family} vocabulary of {config.vocab.size:,} pieces on {config.corpus}')
    tokenizer = train_vocabulary(config, directory)
    print(f'{tokenizer.vocab_size:,} pieces in {directory}, fingerprint {tokenizer.fingerprint[:16]}')
    print(f'last learned pieces: {" ".join(tokenizer.pieces[-12:])}')
    print(f'use it with --config.tokenizer={directory}')
