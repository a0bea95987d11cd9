"""From text to a token store: plan, units in worker processes, merge, manifest.

What `kill -9` leaves is continued unit by unit to identical bytes; what was made from other text, with another
tokenizer or other settings is thrown away, aloud.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

from absl import logging
from etils import epath

from bertjax.corpus import layouts, merge, order, place, plan, readers, report, sources, store, workers
from bertjax.corpus.options import CorpusOptions
from bertjax.corpus.progress import Progress
from bertjax.corpus.reading import problem_error
from bertjax.corpus.unit import id_dtype
from bertjax.errors import UserError
from bertjax.files import exclusive, write_atomic
from bertjax.text.tokenizer import Tokenizer, load_tokenizer


def build_store(
    spec: str | Sequence[str],
    directory: epath.PathLike,
    tokenizer: str | os.PathLike | Tokenizer,
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
    *,
    progress: bool = True,
    replace: bool = True,
) -> dict:
    """Builds the token store of a corpus, or continues a killed build, or finds it there already.

    Args:
      spec: path, glob, directory, 'pydoc:', 'tfds:NAME@split#feature', or several of them joined by commas; no weights
        (each weighted component of `parse_mixture` is built by a call of its own).
      directory: where the store goes; a local path.
      tokenizer: a tokenizer, or the path of one.
      options: see `CorpusOptions`.
      progress: show a progress bar (on a terminal) or now and then a line of log.
      replace: build anew where a finished store of other text or settings is in the directory; False refuses.

    Returns:
      The corpus report, which is in the manifest too.

    Raises:
      UserError: nothing matches, no document is left, broken input when strict, a directory that holds something else.
    """
    if '://' in os.fspath(directory):
        found, mend = f'the remote path {os.fspath(directory)!r}', 'give a directory on a local disk'
        raise UserError('store', found, 'a local directory: a store is memory-mapped', mend)
    found = sources.resolve(_unweighted(spec), options.text_key)
    tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    directory = pathlib.Path(directory)
    identity = _identity(found, tokenizer, options)
    place.check_place(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory, 'builds this store'):
        finished = place.finished_store(directory, identity, found, replace)
        if finished:
            _refuse_broken(finished['report'], options)
            logging.info('The token store in %s is up to date.', directory)
            return finished['report']
        manifest = _build(directory, found, identity, tokenizer, options, progress)
        place.tidy(directory, manifest)
    return manifest['report']


def _refuse_broken(found: dict, options: CorpusOptions) -> None:
    """A strict build does not take a store from which broken input was dropped."""
    if options.strict and found['problems']:
        kind, lines = next(iter(found['problems'].items()))
        mend = 'mend the input, or set config.corpus_options.strict=False'
        raise UserError('config.corpus', f'a store without broken input ({kind}: {lines[0]})', 'no such input', mend)


def _unweighted(spec: str | Sequence[str]) -> list[str]:
    specs = [spec] if isinstance(spec, str) else list(spec)
    for one in specs:
        if any(weight is not None for _, weight in sources.parse_mixture(one)):
            raise UserError('config.corpus', f'the weights of {one!r}', 'one component a store', 'build each by itself')
    return specs


def _identity(found: list[sources.Source], tokenizer: Tokenizer, options: CorpusOptions) -> dict:
    """What decides about the store's bytes and can be known before reading."""
    # A file's time is no fact of its content; a dataset's version, and the hash of Python's own text, are.
    names = [[s.kind, s.name, s.size, '' if s.kind == 'file' else s.stamp] for s in found]
    return {
        'version': store.STORE_VERSION,
        'tokenizer': {
            'fingerprint': tokenizer.fingerprint,
            'family': tokenizer.family,
            'lowercase': tokenizer.lowercase,
            'vocab_size': tokenizer.vocab_size,
        },
        'settings': options.settings(),
        'inputs': {
            'count': len(found),
            'size': sum(source.size for source in found),
            'first': [source.name for source in found[:20]],
            'names': hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        },
    }


def _build(
    directory: pathlib.Path,
    found: list[sources.Source],
    identity: dict,
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: bool,
) -> dict:
    units = plan.plan_units(found, options.format)
    stamps = [[source.path, source.size, source.stamp] for source in found]
    cut = [[dataclasses.astuple(part) for part in parts] for parts in units]
    done = place.prepare(directory, {'identity': identity, 'inputs': stamps, 'units': cut, 'strict': options.strict})
    todo = [number for number in range(len(units)) if number not in done]
    total = sum(part.end - part.begin for number in todo for part in units[number])
    if todo:
        with Progress(total, shown=progress) as watcher:
            workers.run_units(directory, {number: units[number] for number in todo}, tokenizer, options, watcher)
    finished = []
    for number in range(len(units)):
        record = json.loads((directory / 'partial' / f'{number:05d}.json').read_text('utf-8'))
        finished.append(merge.Unit(number, record, directory))
    return _merge(directory, finished, identity, tokenizer, options)


def _merge(
    directory: pathlib.Path, units: list[merge.Unit], identity: dict, tokenizer: Tokenizer, options: CorpusOptions
) -> dict:
    statistics = report.Statistics()
    read = sum(unit.record['documents'] for unit in units)
    if not read:
        dropped = report.add_counts(unit.record['dropped'] for unit in units)
        reasons = ', '.join(f'{count} {kind}' for kind, count in dropped.items()) or 'no text'
        mend = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
        problems = report.add_problems(unit.record['problems'] for unit in units)
        first = next((lines[0] for lines in problems.values()), None)
        found = f'no document at all ({reasons}{"; first: " + first if first else ""})'
        raise UserError('config.corpus', found, 'at least one document', mend)
    repeats = merge.find_repeats(units)
    threshold = merge.heldout_threshold(units, options.heldout)
    where = merge.choose_destinations(units, repeats, threshold, drop=options.drop_duplicates)
    dtype = id_dtype(tokenizer.vocab_size)
    splits = merge.merge_units(units, directory, dtype.itemsize, where, statistics.watch)
    contents = hashlib.sha256(json.dumps([unit.record['inputs'] for unit in units]).encode()).hexdigest()
    manifest = {
        'format': store.STORE_FORMAT,
        **identity,
        'dtype': dtype.str,
        'inputs': {**identity['inputs'], 'content': contents},
        'splits': splits,
        'report': statistics.report(
            units=[unit.record for unit in units],
            splits=splits,
            duplicate_documents=int(repeats.sum()),
            distinct_lines=merge.count_distinct_lines(units),
            likeness=order.neighbour_likeness(store.Split(directory, 'train', splits['train'], dtype)),
            options=options,
        ),
    }
    write_atomic(directory / 'manifest.json', store.seal_manifest(manifest))
    return store.read_manifest(directory)


def iter_texts(
    spec: str | Sequence[str],
    options: CorpusOptions = CorpusOptions(),  # noqa: B008  Frozen.
) -> Iterator[str]:
    """The paragraphs of a corpus one by one, held-out documents too: text to train a vocabulary on.

    Broken lines are left out (`build_store` counts and names them). Memory does not grow with the corpus.

    Raises:
      UserError: nothing matches, there is no text at all; broken input when strict.
    """
    empty = True
    for source in sources.resolve(_unweighted(spec), options.text_key):
        format = options.format if options.format != 'auto' else 'auto/files' if source.single else 'auto/text'
        part = readers.Part(source.kind, source.path, source.name, 0, source.size, format=format)
        for event in readers.read_events(part, text_key=options.text_key):
            if type(event) is str:
                empty = False
                yield event
            elif type(event) is layouts.Broken and options.strict:
                raise problem_error(source.path, event)
    if empty:
        mend = 'check the files, config.corpus_options.format and config.corpus_options.text_key'
        raise UserError('config.corpus', f'no text at all in {spec!r}', 'at least one document', mend)
