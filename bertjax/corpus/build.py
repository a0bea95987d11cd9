"""Builds a token store from text: encodes shards, merges them, and writes a manifest.

After a killed build, the next call encodes only the missing shards and the shards of changed text. The result is the
same as after an uninterrupted build. If the tokenizer, the settings, the rules that read and split text, or the names
or sizes of files have changed, the partial work is removed with a warning.
"""

import itertools
import os
import pathlib
from collections.abc import Sequence

from absl import logging
from etils import epath

from bertjax.corpus import build_dir, identity, merge, reading, report, store, workers
from bertjax.corpus.beam import check_beam
from bertjax.corpus.build_dir import BuildPlan, read_record
from bertjax.corpus.identity import LogFunction
from bertjax.corpus.overlap import check_outside
from bertjax.corpus.shards import cut_shards
from bertjax.corpus.sources import CorpusOptions, TextSource, resolve_sources
from bertjax.errors import UserError
from bertjax.files.atomic import lock_directory, write_atomic
from bertjax.files.paths import is_remote
from bertjax.progress import show_progress
from bertjax.text.splitters import build_splitter, splitter_version
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.wordpiece import INSTALL_FAST, WordPieceTokenizer, describe_fast_saving


def build_store(
    spec: str | Sequence[str],
    directory: epath.PathLike,
    tokenizer: str | os.PathLike | Tokenizer,
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    *,
    progress: bool = True,
    replace: bool = True,
    other_fix: str = '',
    log: LogFunction = logging.info,
    beam: str = '',
) -> dict:
    """Builds the token store of a corpus, or continues a killed build. A finished store that is up to date is kept.

    Args:
      spec: A path, glob, directory, 'pydoc:', 'tfds:NAME@split#feature', or several of these, separated by commas
        or as a list. Weights are not allowed: each weighted component of `parse_mixture` needs a separate call.
      directory: The local directory of the store.
      tokenizer: A tokenizer, or the path of a tokenizer.
      options: See `CorpusOptions`.
      progress: Whether to report progress: with a bar on a terminal, with occasional lines elsewhere.
      replace: Whether to replace a finished store of other text or settings, instead of raising an error.
      other_fix: If `replace` is False, the text that follows 'restore …' in the fix of the error, such as ', or …'.
      log: A function that logs a line, for example about how files are read.
      beam: The flags of Apache Beam, which builds the same store; '' for a build on this machine.

    Returns:
      The corpus report, which the manifest also contains.

    Raises:
      UserError: The corpus matches no file, has no usable document, or has broken input (if strict). The directory is
        remote, contains other files, or overlaps the corpus. Another process builds the store. `replace` is False, and
        the store has other text or settings. The flags of Beam are invalid, or a pipeline failed.
      StoppedError: A worker process died.
    """
    if beam:
        check_beam(beam)
    if is_remote(directory):
        found, fix = f'the remote path {os.fspath(directory)!r}', 'give a directory on a local disk'
        raise UserError('store', found, 'a local directory, because a store is memory-mapped', fix)
    text_sources = resolve_sources(spec, options)
    check_outside(spec, directory)
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    directory = pathlib.Path(directory)
    store_identity = _identity(text_sources, tokenizer, options)
    build_dir.check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with lock_directory(directory, 'builds this store'):
        finished = build_dir.find_finished_store(
            directory, store_identity, text_sources, replace=replace, other_fix=other_fix, log=log
        )
        if finished:
            _check_strict(finished, options)
            logging.info('The token store in %s is up to date.', directory)
            return finished['report']
        if options.split_sentences:
            build_splitter(options.sentences)  # raises if the splitter is not installed, before files are removed
        readings: list[str] = []
        if options.format == 'auto':
            text_sources, readings = reading.choose_readings(text_sources)
        shards = cut_shards(text_sources, options.format)
        plan = BuildPlan(store_identity, text_sources, shards, options.strict, readings)
        (directory / 'manifest.json').unlink(missing_ok=True)
        manifest = _build(directory, plan, tokenizer, options, progress, log, beam)
        build_dir.remove_partial_files(directory, manifest)
    return manifest['report']


def check_store(
    spec: str | Sequence[str],
    directory: pathlib.Path,
    tokenizer: Tokenizer,
    options: CorpusOptions,
    *,
    other_fix: str = '',
    log: LogFunction = logging.info,
) -> None:
    """Raises the UserError of `build_store` with replace=False if it would refuse a finished store. Writes nothing."""
    sources = resolve_sources(spec, options)
    expected = _identity(sources, tokenizer, options)
    finished = build_dir.find_finished_store(
        directory, expected, sources, replace=False, other_fix=other_fix, log=log, write=False
    )
    if finished:
        _check_strict(finished, options)


def _check_strict(manifest: dict, options: CorpusOptions) -> None:
    """Raises a UserError if `options` is strict, but broken input was dropped from the store of the manifest."""
    problems: dict[str, list[str]] = manifest['report']['problems']
    if options.strict and problems:
        kind, lines = next(iter(problems.items()))
        fix = 'correct the input, or set config.corpus_options.strict=False'
        found = f'a store from which broken input was dropped ({kind}: {lines[0]})'
        raise UserError('config.corpus', found, 'text without broken input', fix)


def _identity(text_sources: list[TextSource], tokenizer: Tokenizer, options: CorpusOptions) -> dict:
    """Returns the identity of the store: the values in its manifest that are known before the text is read."""
    return {
        'version': store.STORE_VERSION,
        'tokenizer': {
            'fingerprint': tokenizer.fingerprint,
            'family': tokenizer.family,
            'lowercase': tokenizer.lowercase,
            'vocab_size': tokenizer.vocab_size,
        },
        'settings': options.settings(),
        # A finished store that other rules have split is kept, with a warning.
        'splitter': splitter_version(options.sentences) if options.split_sentences else '',
        'inputs': {
            'count': len(text_sources),
            'size': sum(source.size for source in text_sources),
            'first': [source.name for source in text_sources[:20]],
            'names': identity.hash_names(text_sources),
        },
    }


def _build(
    directory: pathlib.Path,
    plan: BuildPlan,
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: bool,
    log: LogFunction,
    beam: str,
) -> dict:
    """Encodes the missing shards, and merges all shards. Returns the manifest."""
    done = build_dir.prepare_partial(directory, plan)
    for line in plan.readings:
        log(line)
    remaining = {number: parts for number, parts in enumerate(plan.shards) if number not in done}
    if remaining:
        total = sum(part.end - part.begin for parts in remaining.values() for part in parts)
        in_bytes = any(part.kind == 'file' for parts in remaining.values() for part in parts)
        saving = describe_fast_saving(workers.text_bytes(itertools.chain.from_iterable(remaining.values())))
        if saving and tokenizer.family == WordPieceTokenizer.family and not beam:
            log(f'{saving}: {INSTALL_FAST}')
        title = 'reading the corpus' if progress else ''
        with show_progress(title, total, lines=progress, in_bytes=in_bytes) as advance:
            if beam:
                from bertjax.corpus.beam.store import encode_shards

                encode_shards(beam, directory, remaining, tokenizer, advance)
            else:
                workers.encode_shards(directory, remaining, tokenizer, options, advance)
    records = [read_record(directory, number, parts) for number, parts in enumerate(plan.shards)]
    if not any(record['documents'] for record in records):
        raise _no_document_error(records)
    shards = [merge.Shard(number, record, directory) for number, record in enumerate(records)]
    repeats = merge.find_repeats(shards)
    threshold = merge.heldout_threshold(shards, options.heldout)
    merge.choose_destinations(shards, repeats, threshold, drop=options.drop_duplicates)
    dtype = store.id_dtype(tokenizer.vocab_size)
    splits = merge.merge_shards(shards, directory, dtype.itemsize)
    train = store.StoreSplit(directory, 'train', splits['train'], dtype)
    part_digests = [digest for record in records for digest in record['digests']]
    digests = identity.collect_digests(zip(itertools.chain(*plan.shards), part_digests, strict=True))
    content = identity.hash_content(plan.shards, digests)
    manifest = {
        'format': store.STORE_FORMAT,
        **plan.store_identity,
        'dtype': dtype.str,
        'inputs': {**plan.store_identity['inputs'], 'content': content},
        'splits': splits,
        'report': report.make_report(shards, splits, train, duplicate_documents=int(repeats.sum()), options=options),
    }
    # The manifest comes last, because it marks the store as complete.
    identity.write_record(directory, content, identity.identify(plan.sources, digests), plan.readings)
    write_atomic(directory / 'manifest.json', store.manifest_text(manifest))
    return store.read_manifest(directory)


def _no_document_error(records: list[dict]) -> UserError:
    dropped = report.add_counts(record['dropped'] for record in records)
    reasons = ', '.join(f'{count} {kind}' for kind, count in dropped.items()) or 'no text'
    fix = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
    problems = report.add_problems(record['problems'] for record in records)
    first = next((problems[kind][0] for kind in dropped if kind in problems), None)
    found = f'no document at all ({reasons}{"; first: " + first if first else ""})'
    return UserError('config.corpus', found, 'at least one document', fix)
