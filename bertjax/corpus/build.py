"""From text to a token store: shards, encoded in worker processes, merged, and listed in a manifest.

A killed build is continued shard by shard to the same bytes. What it left of other text, another tokenizer or other
settings is thrown away, with a warning.
"""

import itertools
import os
import pathlib
from collections.abc import Sequence

from absl import logging
from etils import epath

from bertjax.corpus import build_dir, identity, merge, partial, quality, reading, report, sources, store, workers
from bertjax.corpus.backend import Backend, LocalBackend, make_backend
from bertjax.corpus.identity import LogFunction, Shards
from bertjax.corpus.overlap import check_outside
from bertjax.corpus.partial import BuildPlan, read_record
from bertjax.corpus.shards import cut_shards
from bertjax.corpus.sources import CorpusOptions, TextSource
from bertjax.errors import UserError
from bertjax.files.atomic import exclusive, write_atomic
from bertjax.files.paths import is_remote
from bertjax.text.splitters import build_splitter, splitter_version
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.wordpiece import INSTALL_FAST, WordPieceTokenizer, saved_by_fast


def build_store(
    spec: str | Sequence[str],
    directory: epath.PathLike,
    tokenizer: str | os.PathLike | Tokenizer,
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    *,
    progress: bool = True,
    replace: bool = True,
    instead: str = '',
    say: LogFunction = logging.info,
    beam: str = '',
) -> dict:
    """Builds the token store of a corpus, continues a killed build, or finds the finished store.

    Args:
      spec: path, glob, directory, 'pydoc:', 'tfds:NAME@split#feature', or several of them joined by commas; no weights
        (each weighted component of `parse_mixture` is built by a call of its own).
      directory: where the store goes; a local path.
      tokenizer: a tokenizer, or the path of one.
      options: see `CorpusOptions`.
      progress: show a progress bar (on a terminal), or log a line now and then.
      replace: replace a finished store of other text or settings in the directory; False refuses to.
      instead: a fix to print with that refusal.
      say: is told how the files are read, and which are read again to compare them with those of a finished store.
      beam: flags of Apache Beam, on whose workers it is built to the same bytes; '' builds it here.

    Returns:
      The corpus report, which the manifest holds too.

    Raises:
      UserError: nothing matches, no document is left, broken input when strict, a directory that holds something else,
        or that lies where the corpus is; flags of Beam that cannot be, or a pipeline that failed.
    """
    means = make_backend(beam)
    if is_remote(directory):
        found, fix = f'the remote path {os.fspath(directory)!r}', 'give a directory on a local disk'
        raise UserError('store', found, 'a local directory: a store is memory-mapped', fix)
    found = sources.resolve(sources.unweighted(spec), options.text_key)
    check_outside(spec, directory)
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    directory = pathlib.Path(directory)
    wanted = _identity(found, tokenizer, options)
    build_dir.check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory, 'builds this store'):
        finished = build_dir.finished_store(
            directory, wanted, found, lambda: _cuts(found, options), replace=replace, instead=instead, say=say
        )
        if finished:
            _refuse_broken(finished['report'], options)
            logging.info('The token store in %s is up to date.', directory)
            return finished['report']
        if options.split_sentences:
            build_splitter(options.sentences)  # Whether it is there: before anything is taken away.
        (directory / 'manifest.json').unlink(missing_ok=True)
        manifest = _build(directory, found, wanted, tokenizer, options, progress, say, means)
        build_dir.tidy(directory, manifest)
    return manifest['report']


def _refuse_broken(finished: dict, options: CorpusOptions) -> None:
    """Raises a UserError in a strict build for a store (its report) from which broken input was dropped."""
    if options.strict and finished['problems']:
        kind, lines = next(iter(finished['problems'].items()))
        fix = 'correct the input, or set config.corpus_options.strict=False'
        found = f'a store from which broken input was dropped ({kind}: {lines[0]})'
        raise UserError('config.corpus', found, 'text without broken input', fix)


def _identity(found: list[TextSource], tokenizer: Tokenizer, options: CorpusOptions) -> dict:
    """What determines the store's bytes, as far as it is known before reading."""
    return {
        'version': store.STORE_VERSION,
        'tokenizer': {
            'fingerprint': tokenizer.fingerprint,
            'family': tokenizer.family,
            'lowercase': tokenizer.lowercase,
            'vocab_size': tokenizer.vocab_size,
        },
        'settings': options.settings(),
        # A finished store stays what it is when a later version cuts otherwise: this is for the record.
        'splitter': splitter_version(options.sentences) if options.split_sentences else '',
        'inputs': {
            'count': len(found),
            'size': sum(source.size for source in found),
            'first': [source.name for source in found[:20]],
            'names': identity.names_hash(found, [source.name for source in found]),
        },
    }


def _choose(found: list[TextSource], options: CorpusOptions) -> tuple[list[TextSource], list[str]]:
    """The sources as they are to be read, and what was decided of them, in words."""
    if options.format != 'auto':
        return found, []
    chosen, readings = reading.choose(found)
    return chosen, list(map(str, readings))


def _cuts(found: list[TextSource], options: CorpusOptions) -> list[Shards]:
    """The shards of the sources of a finished store, as they are cut today and as the first versions cut them."""
    return [cut_shards(some, options.format) for some in (_choose(found, options)[0], found)]


def _build(
    directory: pathlib.Path,
    found: list[TextSource],
    wanted: dict,
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: bool,
    say: LogFunction,
    means: Backend,
) -> dict:
    chosen, readings = _choose(found, options)
    plan = BuildPlan(wanted, chosen, cut_shards(chosen, options.format), options.strict)
    plan, done = partial.prepare(directory, plan, say)
    for line in readings:
        say(line)
    todo = {number: parts for number, parts in enumerate(plan.shards) if number not in done}
    if todo:
        total = sum(part.end - part.begin for parts in todo.values() for part in parts)
        in_bytes = any(part.kind == 'file' for parts in todo.values() for part in parts)
        saving = saved_by_fast(workers.text_bytes(itertools.chain.from_iterable(todo.values())))
        if saving and tokenizer.family == WordPieceTokenizer.family and isinstance(means, LocalBackend):
            say(f'{saving}: {INSTALL_FAST}')
        with workers.Progress(total, shown=progress, in_bytes=in_bytes) as shown:
            means.encode(directory, todo, tokenizer, options, shown)
    finished = [
        merge.Shard(number, read_record(directory, number, parts), directory)
        for number, parts in enumerate(plan.shards)
    ]
    return _merge(directory, finished, plan, readings, tokenizer, options, means)


def _merge(
    directory: pathlib.Path,
    shards: list[merge.Shard],
    plan: BuildPlan,
    readings: list[str],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    means: Backend,
) -> dict:
    records = [shard.record for shard in shards]
    if not sum(record['documents'] for record in records):
        dropped = report.add_counts(record['dropped'] for record in records)
        reasons = ', '.join(f'{count} {kind}' for kind, count in dropped.items()) or 'no text'
        fix = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
        problems = report.add_problems(record['problems'] for record in records)
        first = next((lines[0] for lines in problems.values()), None)
        found = f'no document at all ({reasons}{"; first: " + first if first else ""})'
        raise UserError('config.corpus', found, 'at least one document', fix)
    repeats, distinct_lines = means.compare(shards)
    threshold = merge.heldout_threshold(shards, options.heldout)
    where = merge.choose_destinations(shards, repeats, threshold, drop=options.drop_duplicates)
    dtype, statistics = store.id_dtype(tokenizer.vocab_size), report.Statistics()
    keep = means.keep(shards, where, dtype.itemsize)
    splits = merge.merge_shards(shards, directory, dtype.itemsize, where, statistics.add, keep)
    read = [row[-1] for record in records for row in record['inputs']]
    digests = identity.digests_of(zip(itertools.chain(*plan.shards), read, strict=True))
    content = identity.content_of(plan.shards, digests)
    manifest = {
        'format': store.STORE_FORMAT,
        **plan.wanted,
        'dtype': dtype.str,
        'inputs': {**plan.wanted['inputs'], 'content': content},
        'splits': splits,
        'report': statistics.report(
            records=records,
            splits=splits,
            duplicate_documents=int(repeats.sum()),
            distinct_lines=distinct_lines,
            likeness=quality.coherence(store.StoreSplit(directory, 'train', splits['train'], dtype)),
            options=options,
        ),
    }
    # Before the manifest, which says that all is there.
    identity.write_record(directory, content, identity.identify(plan.sources, digests), readings)
    write_atomic(directory / 'manifest.json', store.manifest_text(manifest))
    return store.read_manifest(directory)
