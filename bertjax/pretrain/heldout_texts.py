"""config.heldout_texts: further texts that a pre-training is evaluated on, each with rows of its own."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.corpus.build import build_store
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.corpus.sources import parse_mixture, resolve_sources
from bertjax.corpus.store import StoreSplit, open_store
from bertjax.errors import UserError, printable
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import WeightedStore
from bertjax.text.tokenizer import Tokenizer
from bertjax.workdir.lock import has_checkpoints

EACH = 'each'  # what the corpora of a mixture hold out, one by one
FOLDER = 'heldout'  # of the workdir: the token stores of these texts
PREFIX = 'heldout:'  # of their splits in rows
_KEY = 'config.heldout_texts'


def split_name(name: str) -> str:
    """What rows call the split of the text `name`."""
    return f'{PREFIX}{name}'


def rows_of_texts(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """{name of a text: its rows} of those of a metrics.jsonl."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row['split'].startswith(PREFIX):
            found.setdefault(row['split'].removeprefix(PREFIX), []).append(row)
    return found


def parse_texts(spec: str) -> list[tuple[str, str]]:
    """'bio=a.txt,wiki=b.txt,each' -> [('bio', 'a.txt'), ('wiki', 'b.txt'), ('each', '')].

    Raises:
      UserError: another form, or a name that comes twice.
    """
    found: list[tuple[str, str]] = []
    for part in [part.strip() for part in spec.split(',')] if spec.strip() else []:
        name, given, path = part.partition('=')
        if part != EACH and not (given and path and re.fullmatch(r'[\w-][\w.-]*', name)):
            fix = f'for example --{_KEY}=bio=texts/bio.txt,wiki=texts/wiki.txt'
            raise UserError(_KEY, repr(part), f"NAME=PATH, or '{EACH}' for each corpus of a mixture", fix)
        found.append((name, path))
    _check_names([name for name, _ in found])
    return found


def check_texts(settings: PretrainingSettings, folder: pathlib.Path) -> None:
    """Refuses what can be wrong with config.heldout_texts while nothing has been read.

    Args:
      settings: of the run.
      folder: its workdir.

    Raises:
      UserError: a text that is not there, that is trained on, or around the workdir; 'each' of a corpus that is no
        mixture; a text that is called as a corpus is.
    """
    texts = parse_texts(settings.heldout_texts)
    for name, path in texts:
        if name != EACH:
            _check_not_trained_on(settings, name, path)
            check_outside(path, folder, WORKDIR_FILES)
            continue
        if settings.data or len(parse_mixture(settings.corpus)) < 2:
            fix = 'write A=auto,B=auto for shares by size, or leave it out: the row heldout is of this corpus'
            raise UserError(_KEY, f'{EACH!r} with one corpus', 'a mixture in config.corpus', fix)
        _check_names([given for given, _ in texts] + corpus_names(settings.corpus))


def prepare_texts(
    settings: PretrainingSettings, folder: pathlib.Path, tokenizer: Tokenizer, stores: Sequence[WeightedStore]
) -> dict[str, StoreSplit]:
    """The texts by name, each as a split of a token store: all of its documents.

    Args:
      settings: of the run, see `check_texts`.
      folder: its workdir, in which stores of these texts are built or found.
      tokenizer: the run's.
      stores: of its corpus.

    Raises:
      UserError: a text that cannot be read; 'each' where a corpus holds nothing out.
    """
    texts: dict[str, StoreSplit] = {}
    for name, path in parse_texts(settings.heldout_texts):
        if name == EACH:
            texts |= _of_each(settings, stores)
            continue
        options = dataclasses.replace(settings.corpus_options, heldout=0.0, drop_duplicates=False)
        directory = folder / FOLDER / name
        build_store(path, directory, tokenizer, options, replace=not has_checkpoints(folder), log=_say)
        texts[name] = open_store(directory, tokenizer_fingerprint=tokenizer.fingerprint).split('train')
    return texts


def corpus_names(spec: str) -> list[str]:
    """A name for each corpus of a mixture: that of its file or folder, or its number where two are called the same."""
    parts = [part for part, _ in parse_mixture(spec)]
    names = [re.sub(r'[^\w-]', '', pathlib.PurePath(part).name.partition('.')[0]) for part in parts]
    return [name if name and names.count(name) == 1 else str(i) for i, name in enumerate(names)]


def _check_names(names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(_KEY, f'{twice!r} twice', 'a name for each text', 'rename one of them')


def _of_each(settings: PretrainingSettings, stores: Sequence[WeightedStore]) -> dict[str, StoreSplit]:
    texts = {}
    for name, weighted in zip(corpus_names(settings.corpus), stores, strict=True):
        texts[name] = weighted.store.split('heldout')
        if not texts[name].num_documents:
            fix = 'raise config.corpus_options.heldout'
            raise UserError(_KEY, f'nothing that {name} holds out', 'documents held out of each corpus', fix)
    return texts


def _check_not_trained_on(settings: PretrainingSettings, name: str, path: str) -> None:
    key = settings.corpus_options.text_key
    found = resolve_sources(path, key)
    if settings.data:
        return  # of which only the ids are there
    trained = {one.path for spec, _ in parse_mixture(settings.corpus) for one in resolve_sources(spec, key)}
    both = next((one.path for one in found if one.path in trained), None)
    if both:
        fix = 'name other files: what is trained on says nothing of other text'
        raise UserError(_KEY, f'{both} in {name} and in config.corpus', 'text that is not trained on', fix)


def _say(line: str) -> None:
    print(printable(line))
