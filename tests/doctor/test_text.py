"""Tests the lines of `bertjax doctor` about a text without a store."""

import pathlib
import random

import pytest

from bertjax.config.recipes import pretraining_config
from bertjax.corpus.build import build_store
from bertjax.doctor.check import FAIL, OK, WARN
from bertjax.doctor.text import corpus, load_existing_tokenizer, tokenizer
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.text import wordpiece
from bertjax.text.vocabulary import train_wordpiece

WORDS = (
    'river',
    'stone',
    'bird',
    'light',
    'green',
    'runs',
    'sings',
    'falls',
    'under',
    'over',
    'near',
    'house',
    'field',
)


def settings_of(path: pathlib.Path, **changes) -> PretrainingSettings:
    return pretraining_settings(pretraining_config('tiny', corpus=str(path), **changes))


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a file of 60 documents of 8 sentences. All sentences of a document contain its unique name."""
    rng, documents = random.Random(7), []
    for number in range(60):
        name = ''.join(rng.choices('aeioubdgklmnprst', k=7))
        documents.append('\n'.join(f'{name} {" ".join(rng.choices(WORDS, k=6))} {number}.' for _ in range(8)))
    (tmp_path / 'text.txt').write_text('\n\n'.join(documents) + '\n')
    return tmp_path / 'text.txt'


def test_copies_and_shuffled_sentences_are_reported(text: pathlib.Path, tmp_path: pathlib.Path, capsys, caplog):
    settings = settings_of(text)
    (check,) = corpus(settings, tmp_path / 'run')
    assert check.status == OK and 'text.txt: 1 file' in check.message and '60 documents' in check.message
    assert [check.status for check in tokenizer(settings, tmp_path)] == [OK] and load_existing_tokenizer(
        settings, tmp_path
    ) is None
    text.write_text('\n'.join(2 * [text.read_text()]))
    (check,) = [check for check in corpus(settings, tmp_path / 'run') if 'documents' in check.message]
    assert check.status == WARN and check.message.startswith('50.0% of the documents are copies')
    sentences = text.read_text().replace('\n\n', '\n').splitlines()
    random.Random(7).shuffle(sentences)
    text.write_text('\n\n'.join('\n'.join(sentences[i : i + 8]) for i in range(0, len(sentences), 8)) + '\n')
    messages = [check.message for check in corpus(settings, tmp_path / 'run')]
    assert any('looks shuffled by sentence' in message for message in messages), messages
    out, err = capsys.readouterr()
    assert not out + err + caplog.text and not (tmp_path / 'run').exists()


def test_missing_text_store_or_vocabulary_is_a_failure(text: pathlib.Path, tmp_path: pathlib.Path):
    (check,) = corpus(settings_of(tmp_path / 'none.txt'), tmp_path)
    assert check.status == FAIL and 'none.txt' in check.message
    settings = settings_of(text, data=str(tmp_path / 'store'))
    (check,) = tokenizer(settings, tmp_path)
    assert check.status == FAIL and 'for the store in config.data' in check.message
    assert not list(corpus(settings, tmp_path))
    (check,) = tokenizer(settings_of(text, tokenizer=str(tmp_path / 'vocab.txt')), tmp_path)
    assert check.status == FAIL and 'vocab.txt' in check.message


def test_a_store_of_another_tokenizer_is_replaced(text: pathlib.Path, tmp_path: pathlib.Path):
    run, runs = tmp_path / 'run', []
    for size in (60, 80):
        train_wordpiece(text.read_text().splitlines(), vocab_size=size, lowercase=True).save(tmp_path / str(size))
        runs.append(settings_of(text, tokenizer=str(tmp_path / str(size))))
    build_store(str(text), run / 'store', runs[0].tokenizer, runs[0].corpus_options, progress=False)
    assert all(check.status != FAIL for settings in runs for check in corpus(settings, run))
    (check,) = corpus(settings_of(text, tokenizer=runs[1].tokenizer, data=str(run / 'store')), run)
    assert check.status == FAIL and 'the tokenizer that the store was built with' in check.fix
    (run / 'store' / 'manifest.json').write_text('{}')
    (check,) = corpus(runs[1], run)
    assert check.status == FAIL and 'manifest.json' in check.message


def test_a_large_text_without_the_fast_tokenizer_is_a_warning(text: pathlib.Path, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(wordpiece, '_MUCH_TEXT', 10_000)
    monkeypatch.setattr(wordpiece, 'nanotoken', None)
    _, check = corpus(settings_of(text), tmp_path / 'run')
    assert check.status == WARN and 'the extra `fast`' in check.message and check.fix == "pip install 'bertjax[fast]'"
