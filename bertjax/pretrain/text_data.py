"""From the settings of a pre-training to its tokenizer and its token stores."""

import dataclasses
import os
import pathlib

from bertjax.corpus.backend import check_beam
from bertjax.corpus.build import build_store
from bertjax.corpus.identity import describe_difference, find_stale, read_readings, with_current_files
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.report import print_report
from bertjax.corpus.sources import AUTO, parse_mixture, resolve_sources
from bertjax.corpus.store import TokenStore, open_store, read_manifest
from bertjax.errors import printable
from bertjax.parallel.distributed import is_primary
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.vocabulary import add_words, load_given_tokenizer, train_vocabulary
from bertjax.remote.paths import user_path
from bertjax.text.smoothing import smoothed_shares
from bertjax.text.tokenizer import Tokenizer
from bertjax.workdir.lock import has_checkpoints, has_run
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.workdir.tokenizer import (
    FOLDER,
    TRAINED,
    check_replaceable,
    keep_checksums,
    keep_tokenizer,
    load_workdir_tokenizer,
    remember_text,
    text_of_vocabulary,
)


@dataclasses.dataclass(frozen=True)
class WeightedStore:
    """A token store and its share of the examples."""

    store: TokenStore
    weight: float


def prepare_tokenizer(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """The run's tokenizer: given, else that of config.init, else one that is trained into WORKDIR/tokenizer.

    Raises:
      UserError: a workdir inside the corpus, no store at config.data, a tokenizer that is not the one saved or trained
        with.
    """
    if not is_primary():
        return load_workdir_tokenizer(workdir)
    if settings.data:
        read_manifest(user_path(settings.data, 'config.data'))  # raises before a vocabulary is trained
    else:
        check_outside(settings.corpus, workdir, WORKDIR_FILES)
        if settings.beam:
            check_beam(settings.beam)
    if has_run(workdir) and not _beginning_is_there(settings):
        return load_workdir_tokenizer(workdir)
    given = settings.tokenizer or (settings.init and huggingface_directory(settings.init))
    if given:
        tokenizer = load_given_tokenizer(settings, given)
        if settings.vocab.add:
            tokenizer = add_words(tokenizer, str(user_path(settings.vocab.add, 'config.vocab.add')))
        keep_tokenizer(tokenizer, workdir, given)
        return tokenizer
    reason = _other_vocabulary(settings, workdir)
    if reason is None:
        tokenizer = load_workdir_tokenizer(workdir)
        keep_checksums(workdir)
        return tokenizer
    check_replaceable(workdir)
    if reason:
        _say(f'the vocabulary in {workdir / FOLDER} was trained on {reason}: it is trained again')
    return train_vocabulary(settings, workdir)


def _beginning_is_there(settings: PretrainingSettings) -> bool:
    """Whether what the vocabulary began with can be looked at: a run that has begun does without."""
    paths = [settings.vocab.add, '' if settings.tokenizer else settings.init]
    return all(os.path.exists(os.path.expanduser(path)) for path in paths if path)


def _other_vocabulary(settings: PretrainingSettings, workdir: pathlib.Path) -> str | None:
    """What the workdir's vocabulary was trained on, where another is to be trained; '' for none, None to take it."""
    path = workdir / FOLDER / TRAINED
    if not path.exists():
        return ''
    changed = _changed_lines(path.read_text(encoding='utf-8', errors='replace'), settings.vocabulary_key)
    if any(key.startswith('vocab.') for key in changed):
        return 'other settings'
    if has_run(workdir) or (settings.data and 'corpus' not in changed):
        return None  # The text of a run is that of its store, which is compared when it is opened; here is no text.
    other = sorted(changed - {'corpus'})
    if other:
        return f'another value of config.{other[0]}'
    known = text_of_vocabulary(workdir)
    if known is None:  # Of the first versions, which knew it by name alone.
        return 'another corpus' if changed else None
    text_key = settings.corpus_options.text_key
    found = [source for spec, _ in parse_mixture(settings.corpus) for source in resolve_sources(spec, text_key)]
    reason = describe_difference(known, found, _say)
    if reason is None and find_stale(known, found):
        remember_text(workdir, with_current_files(known, found))
    return None if reason is None else f'other text ({reason})'


def _changed_lines(key: str, wanted: str) -> set[str]:
    """The names whose values differ in two `vocabulary_key`; what early versions did not note has not changed."""
    before, now = (dict(line.partition(' = ')[::2] for line in text.splitlines()) for text in (key, wanted))
    before = {name: value for name, value in now.items() if name != 'corpus' and not name.startswith('vocab.')} | before
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def store_directories(settings: PretrainingSettings, workdir: pathlib.Path) -> list[pathlib.Path]:
    """Where the token stores of the components of config.corpus lie."""
    count, top = len(parse_mixture(settings.corpus)), workdir / 'store'
    return [top] if count == 1 else [top / str(number) for number in range(count)]


def open_stores(
    settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer, *, verify: bool = True
) -> list[WeightedStore]:
    """The token stores of a run as they lie there: its text need not be. `verify` reads all of them, see `open_store`.

    Raises:
      UserError: one is not there, or of another tokenizer.
    """
    if settings.data:
        directories, weights = [user_path(settings.data, 'config.data')], [None]
    else:
        directories = store_directories(settings, workdir)
        weights = [weight for _, weight in parse_mixture(settings.corpus)]
    stores = [open_store(path, tokenizer_fingerprint=tokenizer.fingerprint, verify=verify) for path in directories]
    if AUTO in weights:
        sizes = [store.split('train').num_tokens for store in stores]
        weights = smoothed_shares(sizes, settings.corpus_options.smoothing)
    return [
        WeightedStore(store, 1.0 if weight is None else weight) for store, weight in zip(stores, weights, strict=True)
    ]


def prepare_stores(settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer) -> list[WeightedStore]:
    """The run's token stores: config.data, or built (or continued, or found) in WORKDIR/store.

    Raises:
      UserError: no text, broken text where config.corpus_options.strict, a store of another tokenizer.
    """
    if settings.data or not is_primary():
        return open_stores(settings, workdir, tokenizer, verify=is_primary())
    parts = parse_mixture(settings.corpus)
    for number, ((spec, weight), directory) in enumerate(zip(parts, store_directories(settings, workdir), strict=True)):
        if len(parts) > 1:
            share = f'its size^{settings.corpus_options.smoothing:g}' if weight == AUTO else f'{weight:g}'
            print(f'corpus {number}: {spec}, {share} of the examples')
        before = _manifest(directory)
        report = build_store(
            spec,
            directory,
            tokenizer,
            settings.corpus_options,
            replace=not has_checkpoints(workdir),
            instead=f', or continue on this store with --config.data={directory}' if len(parts) == 1 else '',
            log=_say,
            beam=settings.beam,
        )
        built = _manifest(directory) != before
        if built or settings.run == 'corpus':
            store = open_store(directory, verify=False)
            for line in [] if built else read_readings(store):  # A build has said it.
                _say(line)
            print_report(report, warn_long_documents(store))
    stores = open_stores(settings, workdir, tokenizer)
    if any(weight == AUTO for _, weight in parts):
        shares = (f'{spec} {one.weight:.1%}' for (spec, _), one in zip(parts, stores, strict=True))
        _say(f'examples by corpus: {", ".join(shares)}')
    return stores


def _manifest(directory: pathlib.Path) -> bytes:
    path = directory / 'manifest.json'
    return path.read_bytes() if path.exists() else b''


def _say(line: str) -> None:
    """Prints a line; what a terminal would obey, which names of files may hold, it shows."""
    print(printable(line))
