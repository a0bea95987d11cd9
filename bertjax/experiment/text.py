"""From the settings of a pre-training to its tokenizer and its token stores."""

import dataclasses
import itertools
import pathlib

from bertjax.corpus.build import build_store, iter_texts
from bertjax.corpus.report import print_report
from bertjax.corpus.sources import parse_mixture
from bertjax.corpus.store import TokenStore, open_store
from bertjax.errors import UserError
from bertjax.experiment.pretraining_settings import PretrainingSettings
from bertjax.files.atomic import write_atomic
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece

TRIALS = 'cells'  # the folder of a sweep's trials; named so in workdirs since the first version


@dataclasses.dataclass(frozen=True)
class WeightedStore:
    """A token store and its share of the examples."""

    store: TokenStore
    weight: float


def train_vocabulary(settings: PretrainingSettings, directory: pathlib.Path) -> Tokenizer:
    """Trains the vocabulary of config.vocab on config.corpus and saves it.

    Raises:
      UserError: no text, or a vocabulary that cannot be trained.
    """
    vocab, options = settings.vocab, settings.corpus_options
    print(f'training a {vocab["family"]} vocabulary of {vocab["size"]:,} pieces on {settings.corpus}')
    specs = [spec for spec, _ in parse_mixture(settings.corpus)]
    texts = itertools.chain.from_iterable(iter_texts(spec, options) for spec in specs)
    shared = {'vocab_size': vocab['size'], 'lowercase': vocab['lowercase'], 'unused': vocab['unused']}
    if vocab['family'] == 'wordpiece':
        tokenizer = train_wordpiece(texts, **shared)
    else:
        tokenizer = train_sentencepiece(
            texts,
            **shared,
            model_type=vocab['model_type'],
            seed=settings.recorded['seed'],
            sample_sentences=vocab['sample_sentences'],
        )
    tokenizer.save(directory)
    # Last: its presence says that the vocabulary is whole, and what it was trained for.
    write_atomic(directory / 'vocabulary.json', settings.vocabulary_key)
    return tokenizer


def prepare_tokenizer(settings: PretrainingSettings, workdir: pathlib.Path) -> Tokenizer:
    """The run's tokenizer: given, else that of config.init, else one that is trained into WORKDIR/tokenizer."""
    own = workdir / 'tokenizer'
    if settings.tokenizer or settings.init:
        tokenizer = load_tokenizer(settings.tokenizer or huggingface_directory(settings.init))
        keep_tokenizer(tokenizer, workdir)
        return tokenizer
    key = own / 'vocabulary.json'
    if key.exists() and key.read_text(encoding='utf-8') == settings.vocabulary_key:
        return load_tokenizer(str(own))
    check_replaceable(workdir)
    return train_vocabulary(settings, own)


def keep_tokenizer(tokenizer: Tokenizer, workdir: pathlib.Path) -> None:
    """Saves `tokenizer` to WORKDIR/tokenizer where it is not there already.

    Raises:
      UserError: see `check_replaceable`.
    """
    own = workdir / 'tokenizer'
    if not own.exists() or load_tokenizer(str(own)).fingerprint != tokenizer.fingerprint:
        check_replaceable(workdir)
        tokenizer.save(own)


def check_replaceable(workdir: pathlib.Path) -> None:
    """Refuses to replace the tokenizer of a workdir that has checkpoints, or trials of a sweep."""
    own = workdir / 'tokenizer'
    if own.exists() and (has_checkpoints(workdir) or (workdir / TRIALS).exists()):
        raise UserError(
            'the tokenizer',
            f'another one in config.tokenizer, or other settings of config.vocab, than that of {own}',
            'the one that the checkpoints beside it were trained with',
            'restore the former values to continue, or start anew in another --workdir',
        )


def has_checkpoints(workdir: pathlib.Path) -> bool:
    """Whether there is a run in this workdir, whose tokenizer and store must not be replaced."""
    return any(path.name.isdigit() for path in (workdir / 'checkpoints').glob('*'))


def huggingface_directory(init: str) -> str:
    """config.init: a Hugging Face directory as it is, of a bertjax workdir its export.

    Raises:
      UserError: neither.
    """
    path = pathlib.Path(init)
    if (path / 'config.json').exists() and (path / 'model.safetensors').exists():
        return init
    exported = path / 'export' / 'hf'
    if exported.is_dir():
        return str(exported)
    if not path.exists() or not (path / 'config.json').exists():
        raise UserError(
            'config.init',
            init,
            'a Hugging Face directory, or a bertjax workdir with export/hf',
            'give such a folder; --config.run=export writes it for a finished run',
        )
    return init


def store_directories(settings: PretrainingSettings, workdir: pathlib.Path) -> list[pathlib.Path]:
    """Where the token stores of the components of config.corpus lie."""
    count, top = len(parse_mixture(settings.corpus)), workdir / 'store'
    return [top] if count == 1 else [top / str(number) for number in range(count)]


def find_stores(settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer) -> list[WeightedStore]:
    """The token stores of a run as they lie there: its text need not be.

    Raises:
      UserError: one is not there, or of another tokenizer.
    """
    if settings.data:
        return [WeightedStore(open_store(settings.data, tokenizer_fingerprint=tokenizer.fingerprint), 1.0)]
    weights = [weight for _, weight in parse_mixture(settings.corpus)]
    stores = [
        open_store(directory, tokenizer_fingerprint=tokenizer.fingerprint)
        for directory in store_directories(settings, workdir)
    ]
    return [
        WeightedStore(store, 1.0 if weight is None else weight) for store, weight in zip(stores, weights, strict=True)
    ]


def prepare_stores(settings: PretrainingSettings, workdir: pathlib.Path, tokenizer: Tokenizer) -> list[WeightedStore]:
    """The run's token stores: config.data, or built (or continued, or found) in WORKDIR/store.

    Raises:
      UserError: no text, broken text where config.corpus_options.strict, a store of another tokenizer.
    """
    if settings.data:
        return find_stores(settings, workdir, tokenizer)
    parts = parse_mixture(settings.corpus)
    for number, ((spec, weight), directory) in enumerate(zip(parts, store_directories(settings, workdir), strict=True)):
        if len(parts) > 1:
            print(f'corpus {number}: {spec}, {weight:g} of the examples')
        found = (directory / 'manifest.json').exists()
        options = settings.corpus_options
        report = build_store(spec, directory, tokenizer, options, replace=not has_checkpoints(workdir))
        if not found or settings.run == 'corpus':
            print_report(report)
    return find_stores(settings, workdir, tokenizer)
