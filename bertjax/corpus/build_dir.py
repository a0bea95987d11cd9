"""The directory of a store: what may be there before it is built, whether it is finished, what is removed afterwards.

A kill can come between any two operations on files. So the order of them is: a manifest is removed before any file of
its store is; a plan is written before the work that follows it (see `partial`), and the manifest after all of it.
Whatever is then found is a whole store, work that follows the plan beside it, or left-overs that neither names.
"""

import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence

from absl import logging

from bertjax.corpus import identity, store
from bertjax.corpus.identity import KnownText, LogFunction, Shards
from bertjax.corpus.sources import TextSource
from bertjax.errors import UserError
from bertjax.text.splitters import UNKNOWN

_OWN_FILES = re.compile(rf'(train|heldout)[^/]*\.(tokens|sentences|documents|segments)|{re.escape(identity.RECORD)}')
_PARTIAL_FILES = re.compile(r'(plan|refused)\.json|\d{5,}\.\w+|(repeats|distinct)-\d+|tokenizer|\..*\.tmp-\d+')

_FORMERLY = {'sentences': 'rules'}  # of settings that the first versions did not have


def check_directory(directory: pathlib.Path) -> None:
    """Raises a UserError for a directory that holds something else."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(str(directory), 'a file', 'a directory for the store', 'give another path')
    paths = [path for path in directory.iterdir() if not path.name.startswith('.')]
    foreign = sorted(path.name for path in paths if not _is_ours(path))
    if 'partial' in foreign or (foreign and not {path.name for path in paths} & {'manifest.json', 'partial'}):
        raise UserError(
            str(directory), f'files of something else ({", ".join(foreign[:3])})',
            'an empty directory or a store', 'give another path',
        )  # fmt: skip


def _is_ours(path: pathlib.Path) -> bool:
    """Whether it is of a store or of work on one, a run's pairing plans beside it, or a store of a mixture."""
    if not path.is_dir():
        return _OWN_FILES.fullmatch(path.name) is not None
    if path.name == 'partial':
        return all(_PARTIAL_FILES.fullmatch(part.name) for part in path.iterdir())
    if path.name == 'plans':
        return all(plan.name.lstrip('.').startswith('plan-') for plan in path.iterdir())
    return path.name.isdigit() and any((path / name).exists() for name in ('manifest.json', 'partial'))


def finished_store(
    directory: pathlib.Path,
    wanted: dict,
    found: Sequence[TextSource],
    cuts: Callable[[], Iterable[Shards]],
    *,
    replace: bool,
    instead: str = '',
    say: LogFunction = logging.info,
) -> dict | None:
    """The manifest of a finished store of the same text and settings; None if there is none.

    Args:
      directory: of the store.
      wanted: from `build`: what determines the store's bytes.
      found: the sources.
      cuts: gives the ways in which a store of them may have been cut into shards.
      replace: whether a store of other text or settings may be replaced.
      instead: what may be done where it may not, beside restoring the text.
      say: is told what is read.

    Raises:
      UserError: it may not.
    """
    if not (directory / 'manifest.json').exists():
        return None
    manifest = store.read_manifest(directory)
    changed = [key for key in ('tokenizer', 'settings') if not _holds(manifest[key], wanted[key])]
    words = {'tokenizer': 'another tokenizer', 'settings': 'other settings'}
    reason = ' and '.join(words[key] for key in changed) or _other_text(directory, manifest, found, cuts, say)
    if reason is None:
        splitter = manifest.get('splitter', 'rules 1')
        if replace and wanted['splitter'] not in (splitter, UNKNOWN):
            logging.warning(
                'The token store in %s is kept, though its sentences were cut by %s, and now would be by %s: remove it '
                'to build it again.', directory, splitter, wanted['splitter'],
            )  # fmt: skip
        tidy(directory, manifest)
        return manifest
    if not replace:
        keys = {'tokenizer': 'config.tokenizer', 'settings': 'config.corpus_options'}
        restored = ' and '.join(keys[key] for key in changed) or 'the files'
        raise UserError(
            str(directory),
            f'a token store of {reason}',
            'the text and the settings that the checkpoints beside it were trained on',
            f'restore {restored}{"" if "tokenizer" in changed else instead}, or start anew in another --workdir',
        )
    logging.warning('The token store in %s was built from %s: it is built again.', directory, reason)
    return None


def _holds(manifest: dict, wanted: dict) -> bool:
    """Whether a part of a manifest has these values; an old one has those of its time."""
    return all(manifest.get(key, _FORMERLY.get(key)) == value for key, value in wanted.items())


def _other_text(
    directory: pathlib.Path,
    manifest: dict,
    found: Sequence[TextSource],
    cuts: Callable[[], Iterable[Shards]],
    say: LogFunction,
) -> str | None:
    """How the text differs from that of a finished store, in words; None where it is the same, which is then kept."""
    content = manifest['inputs']['content']
    record = identity.read_record(directory, content)
    known = record['files'] if record else _known_by_dates(directory, manifest, found)
    if known is None:
        return 'other text (other files, by name or size)'
    reason = identity.other_files(known, found)
    stale = [] if reason else identity.stale(known, found)
    if any(known[i].digests is None for i in stale):
        known = identity.same_content(content, known, found, cuts(), say)
        reason = None if known else 'some of it has changed'
    else:
        reason = reason or identity.difference(known, found, say)
    if reason:
        return f'other text ({reason})'
    if stale or record is None:
        _keep(directory, content, identity.with_current_files(known, found), record['readings'] if record else [])
    return None


def _keep(directory: pathlib.Path, content: str, known: Sequence[KnownText], readings: Sequence[str]) -> None:
    try:
        identity.write_record(directory, content, known, readings)
    except OSError as error:  # A store that may only be read; then files that were moved are read each time.
        logging.info('%s in %s is not written: %s', identity.RECORD, directory, error)


def _known_by_dates(directory: pathlib.Path, manifest: dict, found: Sequence[TextSource]) -> list[KnownText] | None:
    """The record of a store of the first versions, which kept no dates: files older than its manifest are as they were.

    None where names or sizes are others.
    """
    names = identity.names_before(found, manifest['inputs'])
    if names is None:
        return None
    built = (directory / 'manifest.json').stat().st_mtime_ns
    moved = not all(name in (source.name, source.old_name) for name, source in zip(names, found, strict=True))
    newer = [moved or (source.stamp.isdigit() and int(source.stamp) > built) for source in found]
    return [
        KnownText(name, None if source.kind == 'file' and new else identity.facts_of(source))
        for name, source, new in zip(names, found, newer, strict=True)
    ]


def tidy(directory: pathlib.Path, manifest: dict) -> None:
    """Removes files that only an unfinished store needs."""
    shutil.rmtree(directory / 'partial', ignore_errors=True)
    kept = {entry['file'] for entry in store.manifest_files(manifest)}
    for path in [*store.token_files(directory), *directory.glob('*.segments'), *directory.glob('.*.tmp-*')]:
        if path.name not in kept:
            path.unlink(missing_ok=True)
