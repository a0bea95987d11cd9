"""The directory of a store while it is built: what may be there already, and what of an earlier build is kept."""

import json
import pathlib
import shutil

from absl import logging

from bertjax.corpus import store
from bertjax.corpus.sources import Source
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic

_FORMERLY = {'sentences': 'rules'}  # of settings that the first versions did not have


def check_directory(directory: pathlib.Path) -> None:
    """Raises a UserError for a directory that holds something else."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(str(directory), 'a file', 'a directory for the store', 'give another path')
    names = {path.name for path in directory.iterdir() if not path.name.startswith('.')}
    foreign = [name for name in sorted(names) if not name.endswith(('.tokens', '.sentences', '.documents'))]
    if foreign and not names & {'manifest.json', 'partial'}:
        raise UserError(
            str(directory), f'files of something else ({", ".join(foreign[:3])})',
            'an empty directory or a store', 'give another path',
        )  # fmt: skip


def finished_store(directory: pathlib.Path, identity: dict, found: list[Source], replace: bool) -> dict | None:
    """The manifest of a finished store of the same text and settings; None if there is none.

    A store of other text or settings is no longer finished when this returns: its manifest is removed.

    Args:
      directory: of the store.
      identity: from `build`: what determines the store's bytes.
      found: the sources.
      replace: whether a store of other text or settings may be replaced.

    Raises:
      UserError: it may not.
    """
    path = directory / 'manifest.json'
    if not path.exists():
        return None
    manifest = store.read_manifest(directory)
    changed = [key for key in ('tokenizer', 'settings', 'inputs') if not _holds(manifest[key], identity[key])]
    built = path.stat().st_mtime_ns
    local = [source for source in found if source.kind == 'file' and source.stamp.isdigit()]
    newer = [source.name for source in local if int(source.stamp) > built]
    if not changed and not newer:
        splitter = manifest.get('splitter', 'rules 1')
        if replace and splitter != identity['splitter']:
            logging.warning(
                'The token store in %s is kept, though its sentences were cut by %s, and now would be by %s: remove it '
                'to build it again.', directory, splitter, identity['splitter'],
            )  # fmt: skip
        tidy(directory, manifest)
        return manifest
    reason = f'other {" and ".join(changed)}' if changed else f'{newer[0]} changed since'
    if not replace:
        raise UserError(
            str(directory),
            f'a token store of {reason}',
            'the text and the settings that the checkpoints beside it were trained on',
            'restore config.corpus and config.corpus_options, or start anew in another --workdir',
        )
    logging.warning('The token store in %s was built from %s: it is built again.', directory, reason)
    path.unlink()
    return None


def _holds(manifest: dict, wanted: dict) -> bool:
    """Whether a part of a manifest has these values; an old one has those of its time."""
    return all(manifest.get(key, _FORMERLY.get(key)) == value for key, value in wanted.items())


def tidy(directory: pathlib.Path, manifest: dict) -> None:
    """Removes files that only an unfinished store needs."""
    shutil.rmtree(directory / 'partial', ignore_errors=True)
    kept = {entry['file'] for entry in store.manifest_files(manifest)}
    for path in directory.glob('*.tokens'):
        if path.name not in kept:
            path.unlink()


def prepare(directory: pathlib.Path, facts: dict, shards: int) -> set[int]:
    """Makes the directory of partial work, and returns the numbers of the shards that are done already.

    Args:
      directory: of the store.
      facts: what the partial work depends on. It is kept beside the work, which is removed when the facts differ.
      shards: how many there are, for the log.
    """
    partial = directory / 'partial'
    text = json.dumps(facts, indent=1)
    previous = partial / 'plan.json'
    done: set[int] = set()
    if previous.exists() and previous.read_text('utf-8') == text:
        done = {int(path.stem) for path in partial.glob('[0-9]*.json') if _is_whole(directory, path)}
        logging.info('Continuing the build in %s: %d of %d shards are done.', directory, len(done), shards)
    else:
        if partial.exists():
            logging.warning('The unfinished build in %s is of other text or settings: it is thrown away.', directory)
        shutil.rmtree(partial, ignore_errors=True)
        for path in directory.glob('*.tokens'):
            path.unlink()
    partial.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob('.*.tmp-*'), *partial.glob('.*.tmp-*')]:
        path.unlink()
    if not previous.exists():
        write_atomic(previous, text)
    return done


def _is_whole(directory: pathlib.Path, record: pathlib.Path) -> bool:
    """Whether the files in a shard's record are there and have their sizes."""
    sizes = json.loads(record.read_text('utf-8'))['files']
    places = {name: directory / ('' if name.endswith('.tokens') else 'partial') / name for name in sizes}
    return all(path.exists() and path.stat().st_size == sizes[name] for name, path in places.items())
