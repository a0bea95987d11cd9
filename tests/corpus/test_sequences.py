"""Tests stores of documents of ids or symbols with segment types, and their errors."""

import json
import pathlib

import numpy as np
import pytest

from bertjax.corpus.build import build_store
from bertjax.corpus.quality import warn_long_documents
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.corpus.texts import iter_texts
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples
from bertjax.errors import UserError
from bertjax.text.special import SPECIAL_TOKENS
from bertjax.text.symbols import symbol_settings
from bertjax.text.tokenizer_json import JsonTokenizer

SYMBOLS = JsonTokenizer(symbol_settings([*SPECIAL_TOKENS, *(f'c{i}' for i in range(40))]))


def options(**changes) -> CorpusOptions:
    return CorpusOptions(**{'format': 'symbols', 'text_key': 'codes', 'workers': 1, 'heldout': 0.2, **changes})


def documents(count: int = 40) -> list[dict]:
    """Returns `count` documents; sentence j of each has j + 1 symbols and the segment type j % 3."""
    return [
        {
            'codes': [[f'c{(7 * i + 3 * j + k) % 40}' for k in range(j + 1)] for j in range(1 + i % 5)],
            'segments': [j % 3 for j in range(1 + i % 5)],
        }
        for i in range(count)
    ]


def write_jsonl(folder: pathlib.Path, rows: list) -> str:
    path = folder / 'data.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows), encoding='utf-8')
    return str(path)


def test_symbols_and_segments_are_stored(tmp_path: pathlib.Path):
    rows = documents()
    report = build_store(write_jsonl(tmp_path, rows), tmp_path / 'store', SYMBOLS, options(segments=3))
    store = open_store(tmp_path / 'store', tokenizer_fingerprint=SYMBOLS.fingerprint)
    stored = []
    for name in ('train', 'heldout'):
        split = store.split(name)
        for i in range(split.num_documents):
            first, last = split.document_offsets[i], split.document_offsets[i + 1]
            codes = [[SYMBOLS.pieces[t] for t in sentence] for sentence in split.document(i)]
            stored.append({'codes': codes, 'segments': split.segments[first:last].tolist()})
    assert store.split('heldout').num_documents >= 2
    assert sorted(map(json.dumps, stored)) == sorted(map(json.dumps, rows)) and report['unknown_tokens'] == 0


def test_a_corpus_of_ids_gives_the_tokens_of_the_same_symbols(tmp_path: pathlib.Path):
    rows = documents()
    build_store(write_jsonl(tmp_path, rows), tmp_path / 'symbols', SYMBOLS, options())
    ids = [{'tokens': [SYMBOLS.encode([' '.join(s)])[0].tolist() for s in row['codes']]} for row in rows]
    build_store(
        write_jsonl(tmp_path, ids), tmp_path / 'ids', SYMBOLS, options(format='ids', text_key='tokens', heldout=0)
    )
    store = open_store(tmp_path / 'symbols')
    tokens = [store.split(name).tokens(0, store.split(name).num_tokens) for name in ('train', 'heldout')]
    all_ids = open_store(tmp_path / 'ids').split('train')
    assert sorted(np.concatenate(tokens)) == sorted(all_ids.tokens(0, all_ids.num_tokens))
    assert all_ids.segments is None


@pytest.mark.parametrize('mode', ['nsp', 'doc_sentences'])
def test_rows_have_the_segments_of_the_corpus(mode: str, tmp_path: pathlib.Path):
    """The first ids of a row have segment types that these ids have somewhere in the corpus."""
    build_store(write_jsonl(tmp_path, documents()), tmp_path / 'store', SYMBOLS, options(segments=3))
    split = open_store(tmp_path / 'store').split('train')
    examples = PretrainingExamples(
        split, SYMBOLS, seq_len=24, max_predictions=4, pairs=PairOptions(mode=mode, plans=1),
        masking=MaskOptions(mask=0.0, random=0.0), seed=0, phase=0, cache_dir=None,
    )  # fmt: skip
    rows = examples.batch(np.arange(examples.cycle_length))
    ids, kinds = rows['input_ids'], rows['segment_ids']
    assert set(np.unique(kinds)) == {0, 1, 2}
    types_of_ids = {}  # 3 or 4 consecutive ids of the corpus -> the set of their segment types
    flat = split.tokens(0, split.num_tokens)
    types = np.repeat(split.segments, np.diff(split.sentence_offsets))
    for start in range(len(flat)):
        for length in (3, 4):
            types_of_ids.setdefault(tuple(flat[start : start + length].tolist()), set()).add(
                tuple(types[start : start + length].tolist())
            )
    checked = 0
    for row, kind in zip(ids.tolist(), kinds.tolist(), strict=True):
        end = len(row) - row[::-1].index(SYMBOLS.sep_id) - 1
        assert kind[0] == kind[1] and kind[end] == kind[end - 1] and not any(kind[end + 1 :])
        first_end = row.index(SYMBOLS.sep_id)
        if first_end >= 4:
            assert tuple(kind[1:4]) in types_of_ids[tuple(row[1:4])]
            checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ('row', 'changes', 'line'),
    [
        ({'codes': [[3, 99]]}, {'format': 'ids'}, r'data\.jsonl:4: found the id 99, expected ids below 45'),
        ({'codes': [[5, 2]]}, {'format': 'ids'}, r'data\.jsonl:4: found the special token \[CLS\], .*ids belong'),
        ({'codes': [['c1', '[PAD]']]}, {}, r'data\.jsonl:4: found the special token \[PAD\], .*each row$'),
        ({'codes': [['c1', 'new']]}, {'strict': True}, r"data\.jsonl:4: found the symbol 'new'"),
        ({'codes': [['c1']], 'segments': [3]}, {'segments': 3}, r'data\.jsonl:4: found the segment type 3'),
        ({'codes': [['c1']]}, {'segments': 3}, r"data\.jsonl:4: found no field 'segments'"),
        ({'codes': [['c1'], ['c2']], 'segments': [1]}, {'segments': 3, 'strict': True}, r'l:4: found wrong segments'),
        ({'codes': [['c1', 5]]}, {'strict': True}, r'data\.jsonl:4: found wrong sequence \(5 in a list of symbols'),
        ({'codes': [['c 1']]}, {'strict': True}, r'data\.jsonl:4: found wrong sequence'),
        ({'codes': [['c1', None]]}, {'strict': True}, r'data\.jsonl:4: found wrong sequence \(None in a list'),
        ({'codes': [[5, None]]}, {'format': 'ids', 'strict': True}, r'data\.jsonl:4: found wrong sequence'),
        ({'codes': 'c1'}, {'strict': True}, r'missing sequence \(a JSON str in place of a list of symbols in'),
        ({'code': [['c1']]}, {'strict': True}, r'data\.jsonl:4: found missing sequence .* there are: code'),
        ({'codes': [[True]]}, {'format': 'ids', 'strict': True}, r'data\.jsonl:4: found wrong sequence'),
    ],
)  # fmt: skip
def test_errors_name_the_line(row: dict, changes: dict, line: str, tmp_path: pathlib.Path):
    good = [{'codes': [['c1', 'c2']], 'segments': [0]}, {'codes': ['c3', 'c4'], 'segments': [1]}, {'codes': []}]
    if changes.get('format') == 'ids':
        good = [{'codes': [[5, 6]]}, {'codes': [7]}, {'codes': []}]
    if changes.get('segments'):
        good[2]['segments'] = []
    with pytest.raises(UserError, match=line):
        build_store(write_jsonl(tmp_path, [*good, row]), tmp_path / 'store', SYMBOLS, options(**changes))
    assert not (tmp_path / 'store' / 'manifest.json').exists()


def test_unknown_symbols_are_counted_and_broken_lines_are_dropped(tmp_path: pathlib.Path):
    rows = [*documents(), {'codes': [['c1', 'new', 'c2']]}, {'codes': 5}]
    report = build_store(write_jsonl(tmp_path, rows), tmp_path / 'store', SYMBOLS, options())
    assert report['unknown_tokens'] == 1 and report['dropped'] == {'missing sequence': 1}


def test_warnings_about_sequences_do_not_advise_on_text(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{'codes': [5 + (i + j) % 40 for j in range(200)]} for i in range(30)]
    report = build_store(write_jsonl(tmp_path, rows), tmp_path / 'flat', SYMBOLS, options(format='ids'))
    assert 'Give each document as a list of sentences' in report['warnings'][0]
    words = ('blank lines', 'full stops', 'letters', 'boilerplate', 'of this text')
    assert not any(word in warning for warning in report['warnings'] for word in words)
    rows = [*documents(), {'codes': [['new']] * 9}]
    report = build_store(write_jsonl(tmp_path, rows), tmp_path / 'store', SYMBOLS, options())
    (warning,) = [line for line in report['warnings'] if 'lacks symbols of the corpus. Train one' in line]
    assert 'with config.init, append the symbols to a copy of its vocabulary' in warning
    assert not any(word in warning for warning in report['warnings'] for word in words)
    rows = [{'codes': [[1]] * 9}] * 5  # 1 is the id of [UNK]
    report = build_store(write_jsonl(tmp_path, rows), tmp_path / 'ids', SYMBOLS, options(format='ids'))
    assert any('of the sentences are copies of other sentences and' in warning for warning in report['warnings'])
    assert any('[UNK]: the corpus contains its id. Check' in warning for warning in report['warnings'])
    assert not any(word in warning for warning in report['warnings'] for word in words)
    monkeypatch.setattr('bertjax.corpus.quality.MANY_SENTENCES', 5)
    (warning,) = warn_long_documents(open_store(tmp_path / 'store'))
    assert 'Cut them into shorter documents' in warning and 'blank lines' not in warning


def test_the_segments_field_is_ignored_unless_segments_are_requested(tmp_path: pathlib.Path):
    path = write_jsonl(tmp_path, [{'codes': [['c1', 'c2'], ['c3']], 'segments': 'x'}])
    assert list(iter_texts(path, options(heldout=0))) == ['c1 c2', 'c3']
    assert build_store(path, tmp_path / 'store', SYMBOLS, options(heldout=0, segments=0))['documents'] == 1
    with pytest.raises(UserError, match=r"no text at all in .* \(.*data\.jsonl:1: wrong segments: 'x' for 2 sentences"):
        list(iter_texts(path, options(heldout=0, segments=3)))


def test_segments_need_a_format_of_sequences():
    with pytest.raises(UserError, match=r'config\.corpus_options\.segments'):
        CorpusOptions(segments=2)
    assert 'segments' not in CorpusOptions().settings()  # Existing stores lack this key.
