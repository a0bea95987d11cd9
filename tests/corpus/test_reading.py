"""Tests that the content of files, not their names, decides whether blank lines separate documents or paragraphs."""

import pytest
from corpus_text import COMPRESS, as_text, documents, ids_of, stored

from bertjax.corpus import reading
from bertjax.corpus.build import build_store
from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.store import open_store

DOCS = documents(90)
LETTER = 'Dear Anna,\n\nthank you for the book. I have read it twice.\n\nYours, Otto\n'
WRAPPED = """The cloud was on the mind of men, and wailing went the weather and the
sea was old, and the town lay below it, and nobody was in sight of it
for a while.

Then came the boat, which had been out since the morning bell, and all
of the children ran down to the quay, where the old men sat and looked
at nothing.
"""
ABSTRACT = ' '.join(['We measured the length of the river at the old mill.'] * 20)
SENTENCES = 'แม่น้ำ เก่า ไหล ผ่าน\nเด็ก ๆ มา ว่ายน้ำ ที่นี่ ใน ฤดูร้อน และ ตกปลา ด้วย กัน ทุก วัน\nเมือง\n'

TEXTS = {
    'a sentence a line': (as_text(DOCS[:20]).decode(), 'text'),
    'a paragraph a line': ('\n\n'.join('Harbour\nIt is old. It ran.\nA town of it.' for _ in range(5)), 'text'),
    'long Chinese lines': ('\n\n'.join(['我们在老磨坊测量了河流的长度。' * 40] * 4), 'text'),
    'long lines': ('\n\n'.join([ABSTRACT] * 4), 'text'),
    'lines without full stops, of all lengths': ('\n\n'.join([SENTENCES] * 4), 'text'),
    'wrapped paragraphs': (WRAPPED * 3, 'files'),
    'a letter': (LETTER, 'files'),
    'headings and paragraphs': ('History\n\nIt is old. It ran.\nA town of it.\n\n' * 4, 'files'),
    'page breaks': ('The old mill.\nIt ran.\n\fThe town.\nIt ran.\n' * 3, ''),
    'no blank line': ('The old mill.\nIt ran.\n', ''),
    'blank lines around': ('\n\n \nThe old mill.\nIt ran.\n\n\t\n', ''),
    'nothing': ('\n', ''),
}


@pytest.mark.parametrize('name', TEXTS)
def test_blank_lines_are_classified(name):
    text, expected = TEXTS[name]
    for changed in (text, *(text.replace('\n', end) for end in ('\r\n', '\r')), text.replace('\n\n', '\n\u3000\n')):
        assert reading.classify_blank_lines(changed.encode()) == expected


def _write_folder(folder, texts, suffix=''):
    folder.mkdir()
    for index, text in enumerate(texts):
        (folder / f'{index}.txt{suffix}').write_bytes(COMPRESS[suffix](text.encode()))
    return folder


def _formats(spec) -> list[str]:
    readings = reading.choose_readings(resolve_sources(str(spec)))[1]
    return [next(format for format, how in reading._HOW.items() if f', read as {how}' in one) for one in readings]


@pytest.mark.parametrize('suffix', ['', '.gz'])
def test_a_folder_its_glob_and_its_files_are_read_alike(suffix, tmp_path, vocabulary, tokenizer):
    shelf = _write_folder(tmp_path / 'shelf', [WRAPPED, LETTER, 'The old mill.\n', WRAPPED], suffix)
    dump = _write_folder(tmp_path / 'dump', [as_text(DOCS[i : i + 30]).decode() for i in (0, 30, 60)], suffix)
    for folder, expected in ((shelf, 'files'), (dump, 'text')):
        names = ','.join(map(str, sorted(folder.iterdir())))
        assert [_formats(spec) for spec in (folder, f'{folder}/*', names)] == [[expected]] * 3
    assert _formats(f'{shelf},{dump}') == ['text', 'files']  # The components have different formats.
    lines = []
    report = build_store(str(dump), tmp_path / 's', str(vocabulary), progress=False, log=lines.append)
    assert stored(open_store(tmp_path / 's')) == sorted(ids_of(DOCS, tokenizer)) and report['documents'] == 90
    assert lines == [
        f'{dump}: 3 files, read as documents with blank lines between them; '
        '--config.corpus_options.format=files reads them as one document each'
    ]
    options = CorpusOptions(format='files')
    assert build_store(str(dump), tmp_path / 't', str(vocabulary), options, progress=False)['documents'] == 3


def test_a_single_file_is_not_one_document(tmp_path):
    """A single document could neither be paired nor held out. The log says that its blank lines look like the ends of
    paragraphs."""
    folder = _write_folder(tmp_path / 'one', [WRAPPED])
    for spec in (folder, folder / '0.txt'):
        (one,) = reading.choose_readings(resolve_sources(str(spec)))[1]
        assert 'read as documents with' in one and 'look like paragraphs' in one


def test_the_majority_decides_and_the_others_are_counted(tmp_path):
    texts = [as_text(DOCS[:20]).decode()] * 3 + [WRAPPED] * 2 + ['The old mill.\n'] * 40
    (one,) = reading.choose_readings(resolve_sources(str(_write_folder(tmp_path / 'in', texts))))[1]
    assert ': 45 files, read as ' in one and f' of {reading.MAX_INSPECTED} inspected files ' in one
    (tmp_path / 'few').mkdir()
    for index in range(5):
        (tmp_path / 'in' / f'{index}.txt').rename(tmp_path / 'few' / f'{index}.txt')
    (one,) = reading.choose_readings(resolve_sources(str(tmp_path / 'few')))[1]
    assert 'read as documents with' in one and '2 of 5 inspected files seem to be one document each' in one
    for index in range(6, 13):
        (tmp_path / 'few' / f'{index}.jsonl').write_text('{"text": "The old mill."}\n')
    (one,) = reading.choose_readings(resolve_sources(str(tmp_path / 'few')))[1]
    how = f'{reading._HOW["jsonl"]}, and as {reading._HOW["text"]}'
    assert one == f'{tmp_path / "few"}: 12 files, read as {how}'


@pytest.mark.parametrize(
    ('count', 'name', 'how'),
    [
        (1, '00.txt', 'text'),
        (10, '00.txt', 'text'),
        (2 * reading.MAX_INSPECTED, '00.txt', ''),  # the second file
        (2 * reading.MAX_INSPECTED, '-.txt', 'files'),  # the first file; there may be further texts
    ],
)
def test_the_only_text_beside_json_lines_is_not_one_document(count, name, how, tmp_path):
    """Except among many files, of which only some are inspected, such as the first and the last."""
    for index in range(count):
        (tmp_path / f'{index:02}.jsonl').write_text('{"text": "The old mill."}\n')
    (tmp_path / name).write_bytes(b'\n\n'.join([b'The old mill.'] * 9))
    sources, (one,) = reading.choose_readings(resolve_sources(str(tmp_path)))
    assert {source.single for source in sources} == {how == 'files'}
    assert one.endswith(reading._HOW['jsonl'] + (how and f', and as {reading._HOW[how]}'))


def test_documents_of_many_sentences_give_a_warning(tmp_path, vocabulary, monkeypatch):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 's', str(vocabulary), progress=False)
    store = open_store(tmp_path / 's')
    assert warn_long_documents(store) == []
    monkeypatch.setattr('bertjax.corpus.quality.MANY_SENTENCES', 5)
    assert warn_long_documents(store)[0].startswith('18 documents have 5 sentences or more, up to 5. ')


def test_the_formats_of_real_text(shared):
    corpus = shared / 'corpus'
    assert _formats(corpus / 'novels') == _formats(f'{corpus}/novels/*.gz') == ['files']
    assert _formats(f'{corpus}/enwiki*') == ['text'] and _formats(corpus / 'bert_sample_text.txt') == ['text']
    assert _formats(corpus / 'wikiextractor-raw') == ['wikiextractor']
