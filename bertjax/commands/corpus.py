"""run=corpus: build the token store WORKDIR/store from config.corpus, and print the corpus report."""

import pathlib
import shlex
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.files.paths import display_path
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.text_data import prepare_stores, prepare_tokenizer
from bertjax.pretrain.vocabulary import check_existing_vocabulary
from bertjax.workdir.lock import has_checkpoints, lock_workdir

VERB = Verb(needs='corpus', teacher=False, devices=False)


def run(config: ConfigDict, workdir: str, flag_keys: Collection[str] = ()) -> None:
    """Builds the token store WORKDIR/store. Trains a vocabulary first if none exists for this text.

    A mixture of corpora has a store for each corpus, in WORKDIR/store/0, WORKDIR/store/1 and so on.

    Raises:
      UserError: There is no text, config.vocab does not fit the new or existing vocabulary, or the store was made with
        another tokenizer. Or the text is malformed, and config.corpus_options.strict is set.
    """
    settings, folder = pretraining_settings(config), pathlib.Path(workdir)
    settings.check_new_vocabulary()
    if not has_checkpoints(folder):
        check_existing_vocabulary(settings, flag_keys)
    with lock_workdir(folder):
        tokenizer = prepare_tokenizer(settings, folder)
        stores = prepare_stores(settings, folder, tokenizer)
    for store in stores:
        train, heldout = store.split('train'), store.split('heldout')
        sizes = [f'{split.num_documents:,} documents and {split.num_tokens:,} tokens' for split in (train, heldout)]
        print(f'store {store.fingerprint[:16]}: {sizes[0]} to train on, {sizes[1]} held out')
    if len(stores) == 1:
        store, tokenizer_folder = settings.data or display_path(folder / 'store'), display_path(folder / 'tokenizer')
        print(f'use it with --config.data={shlex.quote(store)} --config.tokenizer={shlex.quote(tokenizer_folder)}')
