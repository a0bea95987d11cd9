"""Tests the available sentence splitters and their agreement."""

import gzip
import json
import sys
import time

import pytest
from hard_text import HARD, random_texts

from bertjax.errors import UserError
from bertjax.text.sentences import RULES_VERSION, split_sentences
from bertjax.text.splitters import build_splitter, check_splitter, splitter_version

TEXT = 'Das ist z.B. gut. Er kam am 3. Mai nach Bonn.'


def letters(text: str) -> str:
    return ''.join(text.split())


@pytest.mark.parametrize('name', ['', 'nltk', 'Rules', 'pysbd:', 'pysbd:german', None, 3])
def test_an_unknown_splitter_is_an_error(name):
    with pytest.raises(UserError, match=r"config\.corpus_options\.sentences: found .*expected 'rules', 'pysbd'"):
        check_splitter(name)


def test_the_rules_are_split_sentences():
    assert build_splitter('rules')(TEXT) == split_sentences(TEXT)
    assert splitter_version('rules') == f'rules {RULES_VERSION}'


def test_a_missing_package_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pysbd', None)
    with pytest.raises(UserError, match=r"not installed, .*pip install 'bertjax\[pysbd\]'"):
        build_splitter('pysbd')


def test_pysbd_splits_by_the_rules_of_a_language():
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    check_splitter('pysbd:de')
    assert build_splitter('pysbd:de')(TEXT) == ['Das ist z.B. gut.', 'Er kam am 3. Mai nach Bonn.']
    assert splitter_version('pysbd').startswith('pysbd 0.')
    with pytest.raises(UserError, match="the language 'xx', expected one of am, ar"):
        build_splitter('pysbd:xx')


def test_pysbd_changes_no_character():
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    split = build_splitter('pysbd')
    for text in [*HARD, *random_texts(500, seed=5), 'Its mark ∯ for a stop. Is kept.', ' ', '']:
        sentences = split(text)
        assert letters(''.join(sentences)) == letters(text)
        assert all(sentence and sentence == sentence.strip() for sentence in sentences)
    long = '他说：“走吧。”我们走了。' * 1000  # is split in pieces
    assert all(sentence in long for sentence in split(long))


def test_pysbd_splits_long_paragraphs_in_linear_time():
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    text = 'The dog ran home. It sat there (see Fig. 3). ' * 2000
    start = time.process_time()
    sentences = build_splitter('pysbd')(text + 'X' * 100_000)
    assert time.process_time() - start < 10  # In one piece, the paragraph would take minutes.
    assert sentences[:2] == ['The dog ran home.', 'It sat there (see Fig. 3).'] and len(sentences) == 4001


def boundaries(sentences: list[str]) -> set[int]:
    """Returns the boundaries of sentences, in characters other than white space."""
    count, starts = 0, set()
    for sentence in sentences:
        starts.add(count)
        count += len(letters(sentence))
    return starts - {0}


@pytest.mark.slow
@pytest.mark.parametrize(('domain', 'least'), [('wikipedia', 0.97), ('biomedical', 0.985)])
def test_the_rules_agree_with_pysbd(domain, least, shared):
    """With all paragraphs, `-s` prints the numbers of docs/performance.md."""
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    if domain == 'wikipedia':
        text = (shared / 'corpus' / 'enwiki-validation.txt').read_text('utf-8')
        text += gzip.decompress((shared / 'corpus' / 'enwiki-classic.txt.gz').read_bytes()).decode('utf-8')[:1_500_000]
        paragraphs = text.split('\n')
    else:
        records = json.loads((shared / 'domain' / 'pubmedqa_ori_pqal.json').read_text('utf-8'))
        paragraphs = [text for record in records.values() for text in [*record['CONTEXTS'], record['LONG_ANSWER']]]
    pysbd, both, ours, theirs = build_splitter('pysbd'), 0, 0, 0
    for paragraph in paragraphs[::5]:
        mine, other = boundaries(split_sentences(paragraph)), boundaries(pysbd(paragraph))
        both, ours, theirs = both + len(mine & other), ours + len(mine), theirs + len(other)
    agreement = 2 * both / (ours + theirs)
    print(f'{domain}: {len(paragraphs):,} paragraphs, boundaries ours {ours:,}, pysbd {theirs:,}, F1 {agreement:.4f}')
    assert agreement > least
