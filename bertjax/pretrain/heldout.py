"""Prepares config.heldout_texts and config.heldout_pairs, on which a pre-training run is also evaluated."""

import contextlib
import dataclasses
import filecmp
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.corpus import sequences
from bertjax.corpus.build import build_store, check_store
from bertjax.corpus.identity import KnownText, is_same_text, read_record
from bertjax.corpus.overlap import WORKDIR_FILES, check_outside
from bertjax.corpus.sources import CorpusOptions, TextSource, parse_mixture, resolve_sources
from bertjax.corpus.store import StoreSplit, TokenStore, open_store, read_manifest
from bertjax.data.features import masked_copies
from bertjax.data.length_buckets import choose_lengths
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.parallel.distributed import is_primary
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import find_missing_text, print_line, store_directories
from bertjax.remote.paths import user_path
from bertjax.tasks.minimal_pairs import MinimalPair, accuracies, deduplicate, encode_pairs, read_pairs
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.evaluate import OnCompile
from bertjax.training.predict import SCORE_INPUTS, Predictor, make_token_scores
from bertjax.workdir.lock import has_checkpoints

EACH = 'each'  # the entry for the held-out documents of each corpus of a mixture
FOLDER = 'heldout'  # the folder in the workdir with the token stores of the texts
PREFIX = 'heldout:'  # the prefix of the split names of the texts in metric rows
_KEY = 'config.heldout_texts'
PAIRS_SPLIT = 'heldout_pairs'  # the split name of config.heldout_pairs in metric rows
_PAIRS_KEY = 'config.heldout_pairs'
_MAX_LENGTHS = 4  # the maximum number of padded lengths of pairs; each length is compiled once


def split_name(name: str) -> str:
    """Returns the split name of the text `name` in metric rows."""
    return f'{PREFIX}{name}'


def group_rows_by_text(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Returns {name of a text: its rows}, selected from the rows of a metrics.jsonl."""
    by_text: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row['split'].startswith(PREFIX):
            by_text.setdefault(row['split'].removeprefix(PREFIX), []).append(row)
    return by_text


def parse_texts(spec: str) -> list[tuple[str, str]]:
    """Parses 'bio=a.txt,wiki=b.txt,each' into [('bio', 'a.txt'), ('wiki', 'b.txt'), ('each', '')].

    Raises:
      UserError: The syntax of `spec` is wrong, or a name occurs twice.
    """
    texts: list[tuple[str, str]] = []
    for part in [part.strip() for part in spec.split(',')] if spec.strip() else []:
        name, equals, path = part.partition('=')
        if part != EACH and not (equals and path and re.fullmatch(r'[\w-][\w.-]*', name)):
            fix = f'for example --{_KEY}=bio=texts/bio.txt,wiki=texts/wiki.txt'
            raise UserError(_KEY, repr(part), f"NAME=PATH, or '{EACH}' for each corpus of a mixture", fix)
        texts.append((name, path))
    _check_names([name for name, _ in texts])
    return texts


def check_texts(settings: PretrainingSettings, folder: pathlib.Path) -> None:
    """Checks config.heldout_texts. Files of the same size as a file of the corpus are read. `folder` is the workdir.

    Raises:
      UserError: The syntax is wrong; a text does not exist, is also trained on or contains files of the workdir; 'each'
        is used without a mixture; or a text has the same name as a corpus of 'each'.
    """
    texts = parse_texts(settings.heldout_texts)
    for name, path in texts:
        if path:
            _check_not_trained_on(settings, name, path, folder)
            check_outside(path, folder, WORKDIR_FILES, _KEY)
            continue
        if settings.data or len(parse_mixture(settings.corpus)) < 2:
            fix = 'give a mixture such as A=auto,B=auto, or remove this entry: a single corpus is evaluated anyway'
            raise UserError(_KEY, f'{EACH!r} with one corpus', 'a mixture in config.corpus', fix)
        _check_names([text for text, _ in texts] + corpus_names(settings.corpus))


def prepare_texts(
    settings: PretrainingSettings, folder: pathlib.Path, tokenizer: Tokenizer, stores: Sequence[TokenStore]
) -> dict[str, StoreSplit]:
    """Returns the texts as {name: split}. The token stores of the texts are built in the workdir `folder`, or reused.

    The split of an entry NAME=PATH has all documents of the text. The entry 'each' gives a split for each corpus of the
    mixture, with the held-out documents of its store in `stores`.

    Raises:
      UserError: A text cannot be read or has too few documents, or 'each' is used and a corpus has no held-out
        documents.
    """
    texts: dict[str, StoreSplit] = {}
    options = _text_options(settings, stores)
    for name, path in parse_texts(settings.heldout_texts):
        if not path:
            for corpus, store in zip(corpus_names(settings.corpus), stores, strict=True):
                texts[corpus] = store.split('heldout')
                if not texts[corpus].num_documents:
                    fix = 'raise config.corpus_options.heldout'
                    raise UserError(_KEY, f'no held-out document in {corpus}', 'held-out documents in each corpus', fix)
            continue
        directory = folder / FOLDER / name
        with _errors_of_text(name, directory):
            if is_primary() and (reason := find_missing_text(path, options, directory, folder)):
                print_line(f'{reason} in {_KEY}, {name}: the run continues on the token store in {directory}')
            elif is_primary():
                build_store(path, directory, tokenizer, options, replace=not has_checkpoints(folder), log=print_line)
        texts[name] = open_store(directory, tokenizer_fingerprint=tokenizer.fingerprint).split('train')
        if settings.pair_options.mode == 'nsp' and texts[name].num_documents < 2:
            expected = 'two or more, because next-sentence pairs take B from another document'
            raise UserError(_KEY, f'only one document in {name}', expected, 'separate documents by blank lines')
    return texts


def check_resumed_heldout_texts(
    settings: PretrainingSettings, folder: pathlib.Path, tokenizer: Tokenizer, stores: Sequence[TokenStore]
) -> None:
    """Raises the UserError with which `prepare_texts` refuses another text in a resumed run. Writes nothing."""
    options = _text_options(settings, stores)
    for name, path in parse_texts(settings.heldout_texts):
        directory = folder / FOLDER / name
        if path and not find_missing_text(path, options, directory, folder):
            with _errors_of_text(name, directory):
                check_store(path, directory, tokenizer, options, log=print_line)


def _text_options(settings: PretrainingSettings, stores: Sequence[TokenStore]) -> CorpusOptions:
    options = dataclasses.replace(settings.corpus_options, heldout=0.0, drop_duplicates=False)
    if settings.data and options.format in sequences.FORMATS:  # the config lacks the number of segments
        options = dataclasses.replace(options, segments=stores[0].segments)
    return options


@contextlib.contextmanager
def _errors_of_text(name: str, directory: pathlib.Path) -> Iterator[None]:
    """Adds the name of the text to a UserError, or the fix if `directory` has the store of another text."""
    try:
        yield
    except UserError as error:
        if error.where == str(directory):
            fix = f'restore the text, or give the new text another name in {_KEY}'
            raise UserError(error.where, error.found, error.expected, fix) from None
        raise _name_text(error, name) from None


def corpus_names(spec: str) -> list[str]:
    """Returns a name for each corpus of a mixture: the stem of its path if no other corpus has it, else its index."""
    parts = [part for part, _ in parse_mixture(spec)]
    names = [re.sub(r'[^\w-]', '', pathlib.PurePath(part).name.partition('.')[0]) for part in parts]
    return [name if name and names.count(name) == 1 else str(i) for i, name in enumerate(names)]


def _check_names(names: Sequence[str]) -> None:
    duplicate = next((name for name in names if names.count(name) > 1), '')
    if duplicate:
        raise UserError(_KEY, f'{duplicate!r} twice', 'a different name for each text', 'rename one of them')


def _name_text(error: UserError, name: str) -> UserError:
    where = _KEY if error.where == 'config.corpus' else error.where
    return UserError(where, f'in {name}: {error.found}', error.expected, error.fix)


def _check_not_trained_on(settings: PretrainingSettings, name: str, path: str, folder: pathlib.Path) -> None:
    options = settings.corpus_options
    if find_missing_text(path, options, folder / FOLDER / name, folder):
        return
    try:
        sources = resolve_sources(path, options)
    except UserError as error:
        raise _name_text(error, name) from None
    trained: dict[int, list[KnownText | TextSource]] = {}  # by size
    for text in _trained_texts(settings, folder):
        trained.setdefault(text.facts[0], []).append(text)
    for source in sources:
        for text in trained.get(source.size, ()) if source.size else ():
            if is_same_text(text, source):
                found = f'{source.path} in {name} and in config.{"data" if settings.data else "corpus"} ({text.name})'
                fix = 'name other files: a loss on training text says nothing about other text'
                raise UserError(_KEY, found, 'text that is not trained on', fix)


def _trained_texts(settings: PretrainingSettings, folder: pathlib.Path) -> list[KnownText | TextSource]:
    """Returns the files and datasets of the corpus, or of the token store in config.data."""
    if settings.data:
        return _recorded_texts(user_path(settings.data, 'config.data'))
    options, texts = settings.corpus_options, []
    for (spec, _), store in zip(parse_mixture(settings.corpus), store_directories(settings, folder), strict=True):
        is_missing = find_missing_text(spec, options, store, folder)
        texts += _recorded_texts(store) if is_missing else resolve_sources(spec, options)
    return texts


def _recorded_texts(store: pathlib.Path) -> list[KnownText]:
    record = read_record(store, read_manifest(store)['inputs']['content'])
    return record['files'] if record else []


def read_heldout_pairs(settings: PretrainingSettings, folder: pathlib.Path) -> list[MinimalPair]:
    """Returns the pairs of config.heldout_pairs, or config.eval_examples evenly spaced pairs if there are more.

    Raises:
      UserError: The run in `folder` has evaluated another file, or see `read_pairs`.
    """
    key = 'heldout_pairs'
    used = read_json_or_none(folder / 'config.json', lambda facts: facts[key]) if has_checkpoints(folder) else None
    if used and settings.heldout_pairs and _differ(used, settings.heldout_pairs):
        fix = 'restore it, and use --config=configs/minimal_pairs.py for the other file'
        raise UserError(_PAIRS_KEY, repr(settings.heldout_pairs), f'{used!r}, as in {folder}', fix)
    pairs = read_pairs(settings.heldout_pairs, _PAIRS_KEY) if settings.heldout_pairs else []
    count = min(len(pairs), settings.eval_examples)
    return [pairs[number * len(pairs) // count] for number in range(count)]


def _differ(first: str, second: str) -> bool:
    """Whether two paths name existing files with different content."""
    paths = [user_path(path, _PAIRS_KEY) for path in (first, second)]
    return all(path.is_file() for path in paths) and not filecmp.cmp(*paths, shallow=False)


class PairsEvaluator:
    """An evaluator of the training loop (`EvaluatorProtocol`) that computes the accuracy on minimal pairs.

    There must be at least one pair. A batch has `batch_size` copies of sentences, each with one masked token. For
    errors, see `encode_pairs`.
    """

    split = PAIRS_SPLIT

    def __init__(
        self, pairs: Sequence[MinimalPair], tokenizer: Tokenizer, module: nn.Module, *, batch_size: int, mesh: Mesh
    ):
        longest = module.config.max_positions
        # The kernel in config.model.attention may not support the lengths of the sentences.
        module = module.clone(config=dataclasses.replace(module.config, attention='auto'))
        distinct, self._index = deduplicate(encode_pairs(pairs, tokenizer, longest))
        self._pairs, self._count, self._features = pairs, len(distinct), masked_copies(distinct, tokenizer.mask_id)
        self._predictor = Predictor(
            make_token_scores(module),
            mesh,
            inputs=SCORE_INPUTS,
            per_token=(),
            batch_size=batch_size,
            shapes=choose_lengths(self._features.lengths, count=_MAX_LENGTHS, max_length=longest),
            pad_id=tokenizer.pad_id,
        )

    def run(self, params: Any, on_compile: OnCompile = contextlib.nullcontext) -> tuple[dict[str, float | None], None]:
        """Returns {'accuracy': the mean over the sets of pairs, 'standard_error': that of this mean}, and None.

        The second value is None, because pairs never select the best checkpoint.
        """
        rows = self._predictor.outputs(params, self._features, on_compile)['log_probabilities']
        scores = np.bincount(self._features.record, np.concatenate(rows).astype(np.float64), self._count)
        figures = accuracies(self._pairs, scores[self._index].reshape(-1, 2))
        return {name: figures[name] for name in ('accuracy', 'standard_error')}, None
