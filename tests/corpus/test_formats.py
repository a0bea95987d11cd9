"""Tests that every layout and compression gives the same documents, without titles and markup."""

import json
import random

import pytest
from corpus_text import COMPRESS, as_text, documents, ids_of, stored

from bertjax.corpus.build import build_store
from bertjax.corpus.datasets import dataset_documents, wiki40b_paragraphs
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.corpus.texts import iter_texts

DOCS = documents(24)


def _jsonl(docs):
    return ''.join(json.dumps({'id': index, 'text': '\n'.join(doc)}) + '\n' for index, doc in enumerate(docs)).encode()


def _wiki(docs):
    parts = [
        f'<doc id="{index}" url="https://x" title="Title {index}">\nTitle {index}\n\n' + '\n'.join(doc) + '\n\n</doc>\n'
        for index, doc in enumerate(docs)
    ]
    return '\n'.join(parts).encode()


LAYOUTS = {
    'text.txt': as_text(DOCS),
    'windows.txt': as_text(DOCS, '\r\n'),
    'mac.txt': as_text(DOCS, '\r'),
    'mark.txt': b'\xef\xbb\xbf' + as_text(DOCS),
    'blanks.txt': b'\n \n\t\n' + as_text(DOCS).replace(b'\n\n', b'\n \n\n\t\r\n') + b'\n\n',
    'unicode.txt': as_text(DOCS).replace(b'\n\n', '\n\u3000\n\xa0 \r\n'.encode()),
    'paragraphs.txt': '\n\n'.join(' '.join(doc) for doc in DOCS).encode(),
    'lines.jsonl': _jsonl(DOCS),
    'windows.json': _jsonl(DOCS).replace(b'\n', b'\r\n'),
    'mac.json': _jsonl(DOCS).replace(b'\n', b'\r'),
    'wiki_00': _wiki(DOCS),
}


@pytest.mark.parametrize(
    ('name', 'suffix'),
    [
        *((name, '') for name in LAYOUTS),
        *(('text.txt', suffix) for suffix in list(COMPRESS)[1:]),
        ('lines.jsonl', '.gz'),
    ],
)
def test_every_layout_and_compression_gives_the_same_documents(name, suffix, tmp_path, vocabulary, tokenizer):
    path = tmp_path / (name + suffix)
    path.write_bytes(COMPRESS[suffix](LAYOUTS[name]))
    report = build_store(str(path), tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS, tokenizer))
    assert report['documents'] == len(DOCS) and not report['dropped']


@pytest.mark.parametrize('suffix', COMPRESS)
def test_each_text_file_of_a_directory_is_a_document(suffix, tmp_path, vocabulary, tokenizer):
    for index, doc in enumerate(DOCS):
        path = tmp_path / 'in' / str(index % 3) / f'{index}.txt{suffix}'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(COMPRESS[suffix]('\n\n'.join(doc).encode()))
    build_store(str(tmp_path / 'in'), tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS, tokenizer))


@pytest.mark.parametrize('layout', [_wiki, _jsonl])
def test_the_layout_of_a_directory_is_recognized_by_content(layout, tmp_path, vocabulary, tokenizer):
    for index in range(3):
        path = tmp_path / 'in' / 'AA' / f'wiki_{index:02d}'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(layout(DOCS[index::3]))
    build_store(str(tmp_path / 'in'), tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS, tokenizer))


@pytest.mark.parametrize(
    ('line', 'suffix', 'documents'),
    [('{ "text": "%s"}', '', 5), ('{ "text": "%s"}', '.gz', 5), ('{"%s" was said.', '.gz', 1)],
)
def test_a_long_first_line_is_recognized(line, suffix, documents, tmp_path, vocabulary):
    """The first line is JSON longer than the inspected bytes, or text longer than a decompressor's first output."""
    noise = random.Random(0).randbytes(50_000 if documents == 5 else 30_000).hex()  # It compresses badly.
    text = ''.join(line % f'{noise}{index}' + '\n' for index in range(5))
    (tmp_path / f'a{suffix}').write_bytes(COMPRESS[suffix](text.encode()))
    report = build_store(str(tmp_path / f'a{suffix}'), tmp_path / 'store', str(vocabulary), progress=False)
    assert report['documents'] == documents and not report['dropped']


def test_a_given_format_is_used(tmp_path, vocabulary, tokenizer):
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / 'a.txt').write_bytes(as_text(DOCS))
    options = CorpusOptions(heldout=0, format='files')
    build_store(str(tmp_path / 'in'), tmp_path / 'one', str(vocabulary), options, progress=False)
    assert open_store(tmp_path / 'one').split('train').num_documents == 1
    options = CorpusOptions(format='text')
    build_store(str(tmp_path / 'in'), tmp_path / 'many', str(vocabulary), options, progress=False)
    assert stored(open_store(tmp_path / 'many')) == sorted(ids_of(DOCS, tokenizer))


def test_lists_and_globs_are_joined(tmp_path, vocabulary, tokenizer):
    (tmp_path / 'a1.txt').write_bytes(as_text(DOCS[:9]))
    (tmp_path / 'a2.txt').write_bytes(as_text(DOCS[9:17]))
    (tmp_path / 'b.jsonl').write_bytes(_jsonl(DOCS[17:]))
    spec = f'{tmp_path}/a?.txt, {tmp_path}/b.jsonl'
    build_store(spec, tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS, tokenizer))
    assert list(iter_texts(spec)) == [sentence for doc in DOCS for sentence in doc]


def test_text_key_names_the_json_field(tmp_path, vocabulary):
    path = tmp_path / 'a.jsonl'
    path.write_bytes(_jsonl(DOCS).replace(b'"text"', b'"body"'))
    report = build_store(str(path), tmp_path / 's', str(vocabulary), CorpusOptions(text_key='body'), progress=False)
    assert report['documents'] == len(DOCS)


def test_the_title_of_extracted_json_is_dropped(tmp_path, vocabulary):
    (tmp_path / 'a.jsonl').write_text(json.dumps({'title': 'Mill', 'text': 'Mill\n\nThe old mill. It ran.'}) + '\n')
    assert list(iter_texts(str(tmp_path / 'a.jsonl'))) == ['The old mill. It ran.']
    assert list(iter_texts(str(tmp_path / 'a.jsonl'), CorpusOptions(text_key='title'))) == ['Mill']


def test_extracted_text_is_unescaped(tmp_path):
    """WikiExtractor escapes HTML characters in both outputs. Other JSON is text."""
    path, escaped = tmp_path / 'a', 'AT&amp;T had 1 &lt; 2 mills.'
    record = {'id': '1', 'revid': '2', 'url': 'https://x', 'title': 'Mill', 'text': escaped}
    for content, expected in (
        (json.dumps(record), 'AT&T had 1 < 2 mills.'),
        (_wiki([[escaped]]).decode(), 'AT&T had 1 < 2 mills.'),
        (json.dumps({'title': 'Mill', 'text': escaped}), escaped),
    ):
        path.write_text(content)
        assert list(iter_texts(str(path))) == [expected]


def test_sentences_are_split_only_on_request(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_text('The old mill. The river ran.\nA town.\n\nChildren came. They swim.\n')
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'split', str(vocabulary), progress=False)
    options = CorpusOptions(split_sentences=False)
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'whole', str(vocabulary), options, progress=False)
    counts = [sorted(map(len, stored(open_store(tmp_path / name)))) for name in ('split', 'whole')]
    assert counts == [[2, 3], [1, 2]]


def test_wiki40b_markers_and_titles_are_removed():
    text = (
        '\n_START_ARTICLE_\nMill\n_START_PARAGRAPH_\nThe mill is old._NEWLINE_It ran.\n_START_SECTION_\nHistory\n'
        '_START_PARAGRAPH_\nA river came.\n'
    )
    assert wiki40b_paragraphs(text) == ['The mill is old.', 'It ran.', 'A river came.']
    assert wiki40b_paragraphs('\n_START_ARTICLE_\nOnly a title\n_START_SECTION_\nAnd a header\n') == []


def test_pydoc_has_only_prose():
    topics = list(dataset_documents('pydoc:', 'text', 0, 1000))
    assert len(topics) >= 70
    for paragraphs in topics:
        for paragraph in paragraphs:
            assert '\n' not in paragraph and '::=' not in paragraph and '***' not in paragraph
    text = ' '.join(topics[0])  # `assert`
    assert text.startswith('Assert statements are a convenient way to insert debugging assertions into a program:')
    assert 'raise AssertionError' not in text


def test_the_default_corpus_builds(tmp_path, vocabulary):
    report = build_store('pydoc:', tmp_path / 'store', str(vocabulary), CorpusOptions(heldout=0.1), progress=False)
    assert report['documents'] >= 70 and report['sentences'] > 2000 and report['heldout_documents'] >= 2


def test_real_text_is_built(shared, tmp_path):
    vocabulary = str(shared / 'vocab' / 'bert-base-uncased-vocab.txt')
    wiki = build_store(str(shared / 'corpus' / 'wikiextractor-raw'), tmp_path / 'wiki', vocabulary, progress=False)
    assert wiki['documents'] == 38 and wiki['sentences'] > 5000 and not wiki['dropped']
    novels = build_store(str(shared / 'corpus' / 'novels'), tmp_path / 'novels', vocabulary, progress=False)
    assert novels['documents'] == 6 and novels['sentences'] > 40_000
    sample = build_store(
        str(shared / 'corpus' / 'bert_sample_text.txt'), tmp_path / 'sample', vocabulary, progress=False
    )
    text = (shared / 'corpus' / 'bert_sample_text.txt').read_text()
    assert sample['documents'] == text.strip().count('\n\n') + 1
    assert sample['lines'] == sum(bool(line.strip()) for line in text.splitlines())
