"""Builds or loads the tokenizer and the token stores of a pre-training run."""

import dataclasses
import os
import pathlib
import shlex
from collections.abc import Sequence

from bertjax.config.plain import to_plain
from bertjax.config.resume import MIXTURE_KEYS, check_resume
from bertjax.corpus.beam import check_beam
from bertjax.corpus.build import build_store, check_store
from bertjax.corpus.identity import describe_difference, read_readings, with_current_files
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.report import print_report
from bertjax.corpus.sources import AUTO, CorpusOptions, parse_mixture, resolve_sources
from bertjax.corpus.store import TokenStore, open_store, read_manifest
from bertjax.data.mixture import BLOCK, block_counts
from bertjax.errors import UserError, printable
from bertjax.files.paths import display_path, display_text, real_path
from bertjax.files.small_files import read_json_or_none
from bertjax.parallel.distributed import is_primary
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.vocabulary import add_words, load_configured_tokenizer, train_vocabulary, vocabulary_source
from bertjax.remote.paths import user_path
from bertjax.text.smoothing import smoothed_shares
from bertjax.text.tokenizer import Tokenizer
from bertjax.workdir.lock import has_checkpoints, has_run
from bertjax.workdir.tokenizer import (
    FOLDER,
    TRAINED,
    check_replaceable,
    load_workdir_tokenizer,
    read_vocabulary_text,
    set_workdir_tokenizer,
    update_vocabulary_text,
)


def prepare_tokenizer(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """Loads or trains the tokenizer of the run, and saves it to WORKDIR/tokenizer.

    If config.tokenizer or config.init is set, the tokenizer is loaded from it. Otherwise it is trained on the corpus,
    unless the workdir already has a tokenizer for the same text and settings. A resumed run keeps the tokenizer of its
    workdir if config.tokenizer names it, or if config.vocab.add, config.tokenizer or config.init does not exist here.

    Raises:
      UserError: The corpus contains files of the workdir, config.data has no token store, or the workdir has a run with
        another tokenizer.
    """
    if not is_primary():
        return load_workdir_tokenizer(workdir)
    if settings.data:
        read_manifest(user_path(settings.data, 'config.data'))  # raises an error before a vocabulary is trained
    else:
        check_outside(settings.corpus, workdir, WORKDIR_FILES)
        if settings.beam:
            check_beam(settings.beam)
    if _keeps_tokenizer(settings, workdir):
        return load_workdir_tokenizer(workdir)
    if source := vocabulary_source(settings):
        tokenizer = load_extended_tokenizer(settings, source)
        set_workdir_tokenizer(tokenizer, workdir, source)
        return tokenizer
    reason = _reason_to_train(settings, workdir)
    if reason is None:
        return load_workdir_tokenizer(workdir)
    check_replaceable(workdir)
    if reason:
        print_line(f'the vocabulary in {workdir / FOLDER} was trained with {reason}: it is trained again')
    return train_vocabulary(settings, workdir)


def _keeps_tokenizer(settings: PretrainingSettings, workdir: pathlib.Path) -> bool:
    """Returns whether a resumed run keeps the tokenizer of its workdir without a comparison."""
    saved = workdir / FOLDER
    # display_path returns the address if the workdir is the mirror of a bucket.
    is_saved = real_path(settings.tokenizer) in (real_path(str(saved)), display_path(saved))
    keeps = has_run(workdir) and (is_saved or (saved.exists() and not _vocabulary_sources_exist(settings)))
    if keeps and is_saved and settings.vocab.add:
        print_line(f'the run keeps {saved}: config.vocab.add adds no words')
    return keeps


def load_extended_tokenizer(settings: PretrainingSettings, source: str) -> Tokenizer:
    """Loads the tokenizer `source`, with the words of config.vocab.add."""
    tokenizer = load_configured_tokenizer(settings, source)
    words = settings.vocab.add
    return add_words(tokenizer, str(user_path(words, 'config.vocab.add'))) if words else tokenizer


def check_resumed_text(settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer) -> None:
    """Checks that a resumed run accepts the tokenizer and the text of its settings. Writes nothing.

    `tokenizer` is the tokenizer of the workdir. The mixture must be that of the checkpoints; see `check_resume`.

    Raises:
      UserError: The run would refuse the tokenizer, the text or its options, because they have changed.
    """
    if not _keeps_tokenizer(settings, workdir):
        if source := vocabulary_source(settings):
            differs = load_extended_tokenizer(settings, source).fingerprint != tokenizer.fingerprint
        else:
            differs = _reason_to_train(settings, workdir) is not None
        if differs:
            check_replaceable(workdir)
    if settings.data:
        return
    parts, options = parse_mixture(settings.corpus), settings.corpus_options
    for (spec, _), directory in zip(parts, store_directories(settings, workdir), strict=True):
        if _read_manifest(directory) and not find_missing_text(spec, options, directory, workdir):
            fix = _data_fix(directory) if len(parts) == 1 else ''
            check_store(spec, directory, tokenizer, options, other_fix=fix, log=print_line)


def tokenizer_flag(store: str) -> str:
    """Returns a flag with the tokenizer in the workdir that contains the token store at the path `store`."""
    return f'--config.tokenizer={shlex.quote(os.path.join(os.path.dirname(store.rstrip("/")), FOLDER))}'


def _vocabulary_sources_exist(settings: PretrainingSettings) -> bool:
    """Returns whether the tokenizer's sources exist: config.vocab.add, and config.tokenizer or config.init."""
    paths = [settings.vocab.add, settings.tokenizer or settings.init]
    return all(os.path.exists(os.path.expanduser(path)) for path in paths if path)


def _reason_to_train(settings: PretrainingSettings, workdir: pathlib.Path) -> str | None:
    """Returns the reason to train a new vocabulary, or None if the vocabulary of the workdir can be used.

    The reason is '' if the workdir has no vocabulary. Otherwise it is a phrase such as 'other settings'. Raises a
    UserError if there is a reason, but config.data is set.
    """
    reason = _find_reason_to_train(settings, workdir)
    if settings.data and reason is not None:
        found = f'a vocabulary in {workdir / FOLDER} with {reason}' if reason else 'nothing, with config.data'
        fix = f'for example {tokenizer_flag(settings.data)}'
        raise UserError('config.tokenizer', found, 'the vocabulary of the token store', fix)
    return reason


def _find_reason_to_train(settings: PretrainingSettings, workdir: pathlib.Path) -> str | None:
    path = workdir / FOLDER / TRAINED
    if not path.exists():
        return ''
    keys = path.read_text(encoding='utf-8', errors='replace'), settings.vocabulary_key
    old, new = (dict(line.partition(' = ')[::2] for line in key.splitlines()) for key in keys)
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if any(key.startswith('vocab.') for key in changed):
        return 'other settings'
    if has_run(workdir) or (settings.data and 'corpus' not in changed):
        return None  # `open_store` compares the fingerprints
    other = sorted(changed - {'corpus'})
    if other:
        return f'another value of config.{other[0]}'
    known = read_vocabulary_text(workdir)
    specs, options = parse_mixture(settings.corpus), settings.corpus_options
    sources = [source for spec, _ in specs for source in resolve_sources(spec, options)]
    reason = describe_difference(known, sources, print_line)
    if reason is None and (current := with_current_files(known, sources)) != known:
        update_vocabulary_text(workdir, current)
    return None if reason is None else f'other text ({reason})'


def store_directories(settings: PretrainingSettings, workdir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of the token stores, one for each part of config.corpus."""
    count, top = len(parse_mixture(settings.corpus)), workdir / 'store'
    return [top] if count == 1 else [top / str(number) for number in range(count)]


def has_stores(settings: PretrainingSettings, workdir: pathlib.Path) -> bool:
    """Returns whether config.data is set, or all token stores in the workdir are finished."""
    return bool(settings.data) or all(map(_read_manifest, store_directories(settings, workdir)))


def open_stores(
    settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer, *, verify: bool = True
) -> list[TokenStore]:
    """Opens the token stores of a run without reading its text. For `verify`, see `open_store`.

    Raises:
      UserError: A store does not exist, or it was built with another tokenizer.
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
    pairs = zip(stores, weights, strict=True)
    return [store if weight is None else dataclasses.replace(store, weight=weight) for store, weight in pairs]


def joined_fingerprint(stores: Sequence[TokenStore]) -> str:
    """Returns the fingerprint of all token stores of a run."""
    return '+'.join(store.fingerprint for store in stores)


def prepare_stores(settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer) -> list[TokenStore]:
    """Opens the token store in config.data, or builds the stores in WORKDIR/store if needed and opens them.

    Raises:
      UserError: There is no text, or a store was built with another tokenizer. Or the text is malformed, and
        config.corpus_options.strict is set. Or the run in the workdir has another mixture.
    """
    if settings.data or not is_primary():
        return open_stores(settings, workdir, tokenizer, verify=is_primary())
    _check_same_mixture(settings, workdir)
    specs, weights = zip(*parse_mixture(settings.corpus), strict=True)
    if AUTO not in weights:
        _print_shares(specs, weights)
    for spec, directory in zip(specs, store_directories(settings, workdir), strict=True):
        reason = find_missing_text(spec, settings.corpus_options, directory, workdir)
        if settings.run != 'corpus' and reason:
            print_line(f'{reason} in config.corpus: the run continues on the token store in {directory}')
            continue
        old_manifest = _read_manifest(directory)
        report = build_store(
            spec,
            directory,
            tokenizer,
            settings.corpus_options,
            replace=not has_checkpoints(workdir),
            other_fix=_data_fix(directory) if len(specs) == 1 else '',
            log=print_line,
            beam=settings.beam,
        )
        built = _read_manifest(directory) != old_manifest
        if built or settings.run == 'corpus':
            store = open_store(directory, verify=False)
            for line in [] if built else read_readings(store):  # a build has already printed these lines
                print_line(line)
            print_report(report, warn_long_documents(store))
    stores = open_stores(settings, workdir, tokenizer)
    if AUTO in weights:
        _print_shares(specs, [store.weight for store in stores])
    return stores


def _data_fix(directory: pathlib.Path) -> str:
    return f', or continue on this store with --config.data={shlex.quote(str(directory))}'


def _check_same_mixture(settings: PretrainingSettings, workdir: pathlib.Path) -> None:
    """Refuses another mixture than that of the checkpoints, before the stores of its new parts are built."""
    if has_checkpoints(workdir):
        current = {name: value for name, value in to_plain(settings).items() if name in MIXTURE_KEYS}
        names = (*current, 'fingerprints')
        recorded = read_json_or_none(workdir / 'config.json', lambda facts: {name: facts[name] for name in names})
        if recorded:
            check_resume(recorded, {**current, 'fingerprints': recorded['fingerprints']}, display_path(workdir))


def _print_shares(specs: Sequence[str], weights: Sequence[float]) -> None:
    if len(specs) > 1:
        for spec, count in zip(specs, block_counts(weights).tolist(), strict=True):
            print_line(f'{spec}, {count / BLOCK:.3g} of the examples')


def find_missing_text(spec: str, options: CorpusOptions, store: pathlib.Path, workdir: pathlib.Path) -> str:
    """Returns why a text cannot be read; '' if it can, or if the workdir has no checkpoints or no store of the text."""
    if has_checkpoints(workdir) and _read_manifest(store):
        try:
            resolve_sources(spec, options)
        except UserError as error:
            return error.found
    return ''


def _read_manifest(directory: pathlib.Path) -> bytes:
    path = directory / 'manifest.json'
    return path.read_bytes() if path.exists() else b''


def print_line(line: str) -> None:
    """Prints a line, with addresses of buckets. Control characters, which file names may contain, are escaped."""
    print(printable(display_text(line)))
