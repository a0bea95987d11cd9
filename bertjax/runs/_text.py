"""From a config to its tokenizer and its token stores: what the verbs that touch text share."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from bertjax.config import flatten, plain
from bertjax.corpus.build import build_store, iter_texts
from bertjax.corpus.report import print_report
from bertjax.corpus.sources import CorpusOptions, parse_mixture
from bertjax.corpus.store import TokenStore, open_store
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class WeightedStore:
    """A token store and its share of the examples."""

    store: TokenStore
    weight: float


def corpus_options(config: ConfigDict) -> CorpusOptions:
    """config.corpus_options as the builder's record."""
    return CorpusOptions(**config.corpus_options)


def train_vocabulary(config: ConfigDict, directory: pathlib.Path) -> Tokenizer:
    """Trains the vocabulary of config.vocab on config.corpus and saves it."""
    vocab = config.vocab
    specs = [spec for spec, _ in parse_mixture(config.corpus)]
    texts = itertools.chain.from_iterable(iter_texts(spec, corpus_options(config)) for spec in specs)
    shared = {'vocab_size': vocab.size, 'lowercase': vocab.lowercase, 'unused': vocab.unused}
    if vocab.family == 'wordpiece':
        tokenizer = train_wordpiece(texts, **shared)
    elif vocab.family == 'sentencepiece':
        tokenizer = train_sentencepiece(
            texts, **shared, model_type=vocab.model_type, seed=config.seed, sample_sentences=vocab.sample_sentences
        )
    else:
        raise UserError(
            'config.vocab.family', repr(vocab.family), 'wordpiece or sentencepiece', 'choose one of the two'
        )
    tokenizer.save(directory)
    # Last: its presence says that the vocabulary is whole, and what it was trained for.
    write_atomic(directory / 'vocabulary.json', _vocabulary_key(config))
    return tokenizer


def _vocabulary_key(config: ConfigDict) -> str:
    settings = {'corpus': config.corpus, **flatten({'vocab': plain(config.vocab)})}
    return ''.join(f'{key} = {value}\n' for key, value in sorted(settings.items()))


def prepare_tokenizer(config: ConfigDict, workdir: pathlib.Path, say: Say) -> Tokenizer:
    """The run's tokenizer: given, else that of config.init, else one that is trained into WORKDIR/tokenizer."""
    own = workdir / 'tokenizer'
    if config.tokenizer or config.init:
        tokenizer = load_tokenizer(config.tokenizer or huggingface_directory(config.init))
        if not own.exists() or load_tokenizer(str(own)).fingerprint != tokenizer.fingerprint:
            check_replaceable(own, workdir)
            tokenizer.save(own)
        return tokenizer
    key = own / 'vocabulary.json'
    if key.exists() and key.read_text(encoding='utf-8') == _vocabulary_key(config):
        return load_tokenizer(str(own))
    check_replaceable(own, workdir)
    say(f'training a {config.vocab.family} vocabulary of {config.vocab.size:,} pieces on {config.corpus}')
    return train_vocabulary(config, own)


def check_replaceable(own: pathlib.Path, workdir: pathlib.Path) -> None:
    """Refuses to replace the tokenizer `own` of a workdir that has checkpoints, or cells of a sweep."""
    if own.exists() and (has_checkpoints(workdir) or (workdir / 'cells').exists()):
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
    """config.init: a Hugging Face directory as it is, of a bertjax workdir its export."""
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


def prepare_stores(
    config: ConfigDict, workdir: pathlib.Path, tokenizer: Tokenizer, say: Say, *, progress: bool = True
) -> list[WeightedStore]:
    """The run's token stores: config.data, or built (or continued, or found) in WORKDIR/store."""
    if config.data:
        return [WeightedStore(open_store(config.data, tokenizer_fingerprint=tokenizer.fingerprint), 1.0)]
    parts = parse_mixture(config.corpus)
    stores = []
    for number, (spec, weight) in enumerate(parts):
        directory = workdir / 'store' if len(parts) == 1 else workdir / 'store' / str(number)
        if len(parts) > 1:
            say(f'corpus {number}: {spec}, {weight:g} of the examples')
        found = (directory / 'manifest.json').exists()
        options = corpus_options(config)
        report = build_store(
            spec, directory, tokenizer, options, progress=progress, replace=not has_checkpoints(workdir)
        )
        if not found or config.run == 'corpus':
            print_report(report)
        store = open_store(directory, tokenizer_fingerprint=tokenizer.fingerprint)
        stores.append(WeightedStore(store, 1.0 if weight is None else weight))
    return stores
