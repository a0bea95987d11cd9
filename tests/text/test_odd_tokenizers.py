"""Tests that any error in a tokenizer.json gives either a tokenizer or an error of one line."""

import copy
import json
import pathlib
import random
from collections.abc import Iterator

import numpy as np
import pytest
from marks import slow

from bertjax.errors import UserError
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece

TEXTS = ['The old river, x. [MASK] caf\u00e9', '', '\ud800', '\u4f60 \U0001fae0']
ODD = [
    None, True, False, 0, -1, 2**31, 2**64, 10**30, 1.5, float('nan'), float('inf'), '', 'x', '\ud800', 'a\nb\x1b',
    [], [[]], [1], ['a'], [None], {}, {'a': 1}, {'type': 'x'}, {'type': 1}, {'type': 'Sequence'}, {'type': 'Lowercase'},
    {'type': 'Sequence', 'normalizers': 1}, {'type': 'Sequence', 'normalizers': [1]}, {'type': 'BertNormalizer'},
    {'type': 'Sequence', 'pretokenizers': [{}]}, {'type': 'Replace', 'pattern': {'Regex': '('}, 'content': ''},
    '<list 900>', '<list 5000>', '<object 200>', '<object 900>', '<Sequence 100>', '<Sequence 400>',
]  # fmt: skip
# Deeply nested values are inserted into the text, because Python's json cannot write them.
DEEP = {
    'list': ('[', '', ']'),
    'object': ('{"a":', '1', '}'),
    'Sequence': ('{"type":"Sequence","normalizers":[', '{"type":"Lowercase"}', ']}'),
}


def paths(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Yields the paths of values in parsed JSON; for long lists and objects, only some."""
    if path:
        yield path
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys if len(keys) < 12 else [*keys[:3], keys[-1]]:
        yield from paths(value[key], (*path, key))


def with_one_change(settings: dict, rng: random.Random) -> str:
    """Returns `settings` as JSON, with one value replaced, removed or renamed."""
    changed = copy.deepcopy(settings)
    *path, key = rng.choice(list(paths(changed)))
    parent = changed
    for step in path:
        parent = parent[step]
    how = rng.random()
    if how < 0.15:
        del parent[key]
    elif how < 0.2 and isinstance(parent, dict):
        parent[rng.choice(['', '\ud800', 'z\x1b'])] = parent.pop(key)
    else:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    text = json.dumps(changed)
    for name, (left, inner, right) in DEEP.items():
        for depth in (100, 200, 400, 900, 5000):
            text = text.replace(f'"<{name} {depth}>"', left * depth + inner + right * depth)
    return text


def use(folder: pathlib.Path) -> None:
    """Calls every method of a tokenizer that the program uses."""
    tokenizer = load_tokenizer(folder)
    ids = np.concatenate(tokenizer.encode(TEXTS))
    assert ((ids >= 0) & (ids < tokenizer.vocab_size)).all()
    tokenizer.encode_with_offsets(TEXTS)
    tokenizer.decode(range(min(50, tokenizer.vocab_size)))
    tokenizer.save(folder / 'saved')
    load_tokenizer(folder / 'saved')


LINES = ['the old river runs under a slow green bird', 'a stone falls near the house, red light in the field.'] * 50


def small(family: str) -> Tokenizer:
    if family == 'wordpiece':
        return train_wordpiece(LINES, vocab_size=80, lowercase=True, unused=2)
    return train_sentencepiece(LINES, vocab_size=60, model_type=family, lowercase=True, unused=1, seed=0)


@pytest.mark.parametrize('family', ['wordpiece', 'unigram', *slow('bpe')])
def test_settings_with_one_change_give_a_tokenizer_or_an_error(family, tmp_path):
    small(family).save(tmp_path)
    for other in ('vocab.txt', 'tokenizer.model'):
        (tmp_path / other).unlink(missing_ok=True)
    settings, rng, refused = json.loads((tmp_path / 'tokenizer.json').read_text('utf-8')), random.Random(0), 0
    for _ in range(100):
        text = with_one_change(settings, rng)
        (tmp_path / 'tokenizer.json').write_text(text, 'utf-8')
        try:
            use(tmp_path)
        except UserError as error:
            refused += 1
            assert 'tokenizer.json' in str(error) and str(error).isprintable()
    assert 33 < refused < 100


def test_a_model_with_changed_bytes_gives_a_tokenizer_or_an_error(tmp_path):
    small('unigram').save(tmp_path)
    path, rng, refused = tmp_path / 'tokenizer.model', random.Random(0), 0
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(4):
            data[rng.randrange(min(len(data), 4000))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            use(tmp_path)
        except UserError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', 'an empty file'),
        (b'{', 'no JSON'),
        (b'[]', 'a JSON list'),
        (b'\xff{}', 'no JSON'),
        (b'[' * 100_000, 'nested too deeply'),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": {}}}}', 'settings that cannot be loaded'),
    ],
    ids=range(6),
)
def test_an_invalid_tokenizer_json_is_an_error(content, message, tmp_path):
    (tmp_path / 'tokenizer.json').write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize('key', ['do_lower_case', 'strip_accents', 'tokenize_chinese_chars'])
def test_a_configuration_with_wrong_types_is_an_error(key, tmp_path):
    small('wordpiece').save(tmp_path)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({key: 'yes'}))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: found {key} 'yes', expected true, false or null"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize('address', ['http://example.org/vocab.txt', '/dev/zero'])
def test_a_path_that_is_not_a_file_is_an_error(address):
    with pytest.raises(UserError):
        load_tokenizer(address)


def test_a_file_of_a_terabyte_is_an_error(tmp_path):
    with (tmp_path / 'vocab.txt').open('wb') as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r'a file of 1,099,511,627,776 bytes'):
        load_tokenizer(tmp_path)
