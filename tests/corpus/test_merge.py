"""Tests held-out documents, duplicates, and the numbers of the report."""

import collections
import random

import numpy as np
import pytest
from corpus_text import as_text, documents, ids_of, stored

from bertjax.corpus import merge
from bertjax.corpus.build import build_store
from bertjax.corpus.report import BINS, print_report
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.errors import UserError


def _store(docs, tmp_path, vocabulary, **options):
    (tmp_path / 'a.txt').write_bytes(as_text(docs))
    report = build_store(
        str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), CorpusOptions(**options), progress=False
    )
    return open_store(tmp_path / 'store'), report


def test_the_heldout_split_has_the_requested_share_and_is_disjoint(tmp_path, vocabulary, tokenizer):
    docs = documents(3000)
    store, report = _store(docs, tmp_path, vocabulary, heldout=0.1)
    train, heldout = stored(store, 'train'), stored(store, 'heldout')
    assert sorted(train + heldout) == sorted(ids_of(docs, tokenizer))
    assert 0.08 < len(heldout) / len(docs) < 0.12
    assert report['train_documents'] == len(train) and report['heldout_documents'] == len(heldout)


def test_equal_documents_are_in_one_split_and_are_held_out_once(tmp_path, vocabulary, tokenizer):
    docs = documents(400)
    variants = [[line.upper() + ' ' for line in doc] for doc in docs] + [[' '.join(doc)] for doc in docs]
    everything = docs + variants + docs
    random.Random(1).shuffle(everything)
    store, report = _store(everything, tmp_path, vocabulary, heldout=0.2)
    train = [tuple(id for sentence in doc for id in sentence) for doc in stored(store, 'train')]
    heldout = [tuple(id for sentence in doc for id in sentence) for doc in stored(store, 'heldout')]
    assert not set(train) & set(heldout)
    assert len(heldout) == len(set(heldout)) and 40 < len(heldout) < 120
    assert collections.Counter(collections.Counter(train).values()) == {4: len(set(train))}
    assert len(set(train)) + len(heldout) == len(docs)
    assert report['duplicate_documents'] == 3 * len(docs)
    assert any('copies' in warning for warning in report['warnings'])


def test_duplicates_can_be_dropped(tmp_path, vocabulary, tokenizer):
    docs = documents(100)
    store, report = _store(docs * 2, tmp_path, vocabulary, drop_duplicates=True)
    assert stored(store) == sorted(ids_of(docs, tokenizer))
    assert report['documents_read'] == 200 and report['documents'] == 100


@pytest.mark.parametrize(
    ('number', 'heldout', 'sizes'),
    [(1, 0.02, (1, 0)), (2, 0.02, (1, 1)), (3, 0.02, (2, 1)), (4, 0.02, (2, 2)), (5, 0.99, (2, 3)), (9, 0.0, (9, 0))],
)
def test_small_corpora_have_both_splits(number, heldout, sizes, tmp_path, vocabulary, tokenizer):
    docs = documents(number)
    store, report = _store(docs, tmp_path, vocabulary, heldout=heldout)
    assert tuple(store.split(name).num_documents for name in ('train', 'heldout')) == sizes
    assert stored(store) == sorted(ids_of(docs, tokenizer))
    assert any('No document is held out' in warning for warning in report['warnings']) == (sizes[1] == 0)
    assert len(store.split('heldout').sentence_offsets) == store.split('heldout').num_sentences + 1


def test_a_corpus_of_copies_of_one_document_is_not_held_out(tmp_path, vocabulary):
    store, _ = _store([documents(1)[0]] * 5, tmp_path, vocabulary, heldout=0.5)
    assert store.split('train').num_documents == 5


def test_the_sizes_of_buckets_and_runs_change_no_count(monkeypatch, tmp_path, vocabulary):
    docs = documents(300)
    whole = _store(docs + docs[:77], tmp_path, vocabulary)[1]
    monkeypatch.setattr(merge, 'BUCKET', 50)
    monkeypatch.setattr('bertjax.corpus.shard_writer.RUN', 64)
    (tmp_path / 'again').mkdir()
    parts = _store(docs + docs[:77], tmp_path / 'again', vocabulary)[1]
    assert parts == whole and whole['duplicate_documents'] == 77


def test_the_report_equals_simple_counts(tmp_path, vocabulary, tokenizer):
    docs = [*documents(200), ['Été 東京 mill.'], ['The river.', 'The river.', 'the  RIVER.']]
    _, report = _store(docs, tmp_path, vocabulary, heldout=0.1)
    ids = ids_of(docs, tokenizer)
    lengths = [len(sentence) for doc in ids for sentence in doc]
    flat = np.concatenate([sentence for doc in ids for sentence in doc])
    lines = [' '.join(line.split()).lower() for doc in docs for line in doc]
    assert report['documents'] == len(docs) and report['sentences'] == len(lengths)
    assert report['tokens'] == sum(lengths) and report['longest_sentence'] == max(lengths)
    assert report['longest_document'] == max(sum(map(len, doc)) for doc in ids)
    assert report['unknown_tokens'] == sum(flat == tokenizer.unk_id) > 0
    assert report['unknown_rate'] == pytest.approx(report['unknown_tokens'] / len(flat), abs=1e-6)
    assert report['words'] == sum(not tokenizer.pieces[id].startswith('##') for id in flat)
    assert report['one_sentence_documents'] == sum(len(doc) == 1 for doc in ids)
    assert report['lines'] == len(lines) and report['duplicate_lines'] == len(lines) - len(set(lines)) == 2
    assert report['characters'] == sum(len(line) for doc in docs for line in doc)
    low = 0
    for bound in BINS:
        assert report['sentence_lengths'][str(bound)] == sum(low < length <= bound for length in lengths)
        low = bound
    assert report['sentences_per_document'] == pytest.approx(len(lengths) / len(docs), abs=1e-6)


def test_the_report_is_printed(tmp_path, vocabulary, capsys):
    (tmp_path / 'b.txt').write_bytes(b'\xff[bold]\n')
    (tmp_path / 'a.txt').write_bytes(as_text(documents(300)))
    report = build_store(f'{tmp_path}/*.txt', tmp_path / 'store', str(vocabulary), progress=False)
    print_report(report)
    text = capsys.readouterr().out
    assert 'Documents' in text and '300' in text and f'{report["tokens"]:,}' in text
    assert 'invalid UTF-8: b.txt:1: ' in text and 'warning: ' in text and '17 to 32' in text


def test_invalid_options_are_refused():
    for wrong in ({'format': 'txt'}, {'heldout': 1.0}, {'heldout': -0.1}, {'workers': -1}):
        with pytest.raises(UserError):
            CorpusOptions(**wrong)


def test_lines_that_differ_only_in_white_space_and_case_are_duplicates(tmp_path, vocabulary):
    lines = [
        'The cat sat.',
        'the cat  sat.',
        'The\tcat\u00a0sat.',
        '  The cat sat. ',
        'The\x1fcat\u3000\u2028sat.',
        'A dog sat.',
    ]
    path = tmp_path / 'text.txt'
    path.write_text('\n\n'.join(lines), encoding='utf-8')
    report = build_store(str(path), tmp_path / 'store', str(vocabulary), progress=False)
    assert (report['duplicate_lines'], report['duplicate_documents']) == (4, 4)
    # Printable lines skip the normalization of white space, because no white space except ' ' is printable.
    assert not any(char.isprintable() for char in map(chr, range(1 << 16)) if char.isspace() and char != ' ')
