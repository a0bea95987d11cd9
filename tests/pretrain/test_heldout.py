"""Tests config.heldout_texts, and naming corpora."""

import types

import pytest

import bertjax
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.errors import UserError
from bertjax.pretrain.heldout import check_texts, corpus_names, parse_texts, prepare_texts
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.text_data import prepare_tokenizer
from bertjax.text.tokenizer import load_tokenizer
from bertjax.workdir.rows import write_rows


def test_names_and_paths_are_parsed_or_refused():
    assert parse_texts('') == []
    assert parse_texts('bio=a.txt, each,wiki=b/*.txt') == [('bio', 'a.txt'), ('each', ''), ('wiki', 'b/*.txt')]
    for wrong in ('a.txt', 'bio=', '=a', 'b/o=a', 'bio=a,,wiki=b', 'all'):
        with pytest.raises(UserError, match='NAME=PATH'):
            parse_texts(wrong)
    with pytest.raises(UserError, match="'bio' twice"):
        parse_texts('bio=a,bio=b')


def test_a_text_can_have_the_name_each(tmp_path):
    texts = [tmp_path / 'train.txt', tmp_path / 'other.txt']
    for text in texts:
        text.write_text(text.name)
    settings = types.SimpleNamespace(
        heldout_texts=f'each={texts[1]}', data='', corpus=str(texts[0]), corpus_options=CorpusOptions()
    )
    check_texts(settings, tmp_path / 'run')
    settings.heldout_texts = f'each={texts[0]}'
    with pytest.raises(UserError, match='text that is not trained on'):
        check_texts(settings, tmp_path / 'run')


def test_a_copy_of_the_training_text_is_refused(tmp_path):
    (tmp_path / 'vocab.txt').write_text('[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n')
    texts = [tmp_path / name for name in ('train.txt', 'copy.txt', 'other.txt')]
    for text, line in zip(texts, ('It rains.', 'It rains.', 'It pours.'), strict=True):
        text.write_text(line + '\n')
    build_store(str(texts[0]), tmp_path / 'store', load_tokenizer(tmp_path / 'vocab.txt'), CorpusOptions(heldout=0.0))
    for key, data, corpus in (('data', str(tmp_path / 'store'), ''), ('corpus', '', str(texts[0]))):
        settings = types.SimpleNamespace(
            heldout_texts=f'other={texts[2]}', data=data, corpus=corpus, corpus_options=CorpusOptions()
        )
        check_texts(settings, tmp_path / 'run')
        for path in texts[:2]:
            settings.heldout_texts = f'x={path}'
            with pytest.raises(UserError, match=rf'{path.name} in x and in config\.{key} \(train\.txt\)'):
                check_texts(settings, tmp_path / 'run')


def test_unreadable_files_are_not_copies(tmp_path):
    for name in ('train', 'heldout'):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'a.txt').write_text(f'{name}\n')
        (tmp_path / name / 'gone.txt').symlink_to('/nowhere')
    corpus, texts = str(tmp_path / 'train'), f'x={tmp_path}/heldout'
    settings = types.SimpleNamespace(heldout_texts=texts, data='', corpus=corpus, corpus_options=CorpusOptions())
    check_texts(settings, tmp_path / 'run')


def test_a_text_can_be_plain_if_the_corpus_is_rows(tmp_path):
    (tmp_path / 'other.txt').write_text('It rains.\n\nIt pours.\n')
    recipe = bertjax.recipe('pretrain_tiny', corpus=['it rains'], heldout_texts=f'other={tmp_path}/other.txt')
    settings = pretraining_settings(write_rows(recipe, tmp_path / 'run').config)
    tokenizer = prepare_tokenizer(settings, tmp_path / 'run')
    assert prepare_texts(settings, tmp_path / 'run', tokenizer, [])['other'].num_documents == 2


def test_corpora_are_named_after_their_files_if_the_names_differ():
    assert corpus_names('texts/de.txt.gz=auto,texts/ru.txt=auto,news/=auto') == ['de', 'ru', 'news']
    assert corpus_names('a/x.txt=0.5,b/x.txt=0.3,c/*.txt=0.2') == ['0', '1', '2']


def test_a_run_continues_without_a_text_that_has_a_store(tmp_path, monkeypatch):
    (tmp_path / 'train.txt').write_text('one\n')
    settings = types.SimpleNamespace(
        heldout_texts='other=/nowhere.txt', data='', corpus=str(tmp_path / 'train.txt'), corpus_options=CorpusOptions()
    )
    monkeypatch.setattr('bertjax.pretrain.text_data.has_checkpoints', lambda folder: True)
    with pytest.raises(UserError, match='in other: no'):
        check_texts(settings, tmp_path / 'run')
    (tmp_path / 'run' / 'heldout' / 'other').mkdir(parents=True)
    (tmp_path / 'run' / 'heldout' / 'other' / 'manifest.json').write_text('{}')
    check_texts(settings, tmp_path / 'run')
