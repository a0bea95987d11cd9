"""Tests that any tokenizer.json gives transformers' ids and offsets."""

import copy
import json
import random
import shutil

import numpy as np
import pytest
from hard_text import HARD, SPECIAL, random_texts
from json_tokenizers import KINDS, write_tokenizer

from bertjax.errors import UserError
from bertjax.text.sentencepiece_proto import SPACE
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.tokenizer_json import set_prefix_space

transformers = pytest.importorskip('transformers', reason='compares with transformers')


@pytest.fixture(scope='module', params=KINDS)
def pair(request, paragraphs, tmp_path_factory):
    """Returns (our tokenizer, transformers', the directory) for each kind."""
    directory = tmp_path_factory.mktemp(request.param)
    write_tokenizer(request.param, [*paragraphs[:1500], 'naïve café 你好'], directory)
    return load_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory), directory


def _texts(lines, tokenizer, added):
    """Returns `lines`, unusual texts, and texts with added tokens inside and between words."""
    rng, mask = random.Random(0), tokenizer.pieces[tokenizer.mask_id]
    odd = [
        f'a  {mask} b',
        mask,
        f'x{mask}y',
        f' {mask}',
        f'{mask}{mask} {mask},',
        'x' * 5000,
        '\n\n\n',
        'a   b     c \n d',
    ]

    def join():
        spaces = ['', ' ', '  ', '\n']
        return ''.join([rng.choice(lines)[:30], rng.choice(spaces), rng.choice(added), rng.choice(spaces), 'end'])

    return [*HARD, *SPECIAL, *odd, *(join() for _ in range(60)), *random_texts(100, seed=3), *lines]


def _assert_same(ours, theirs, texts):
    reference = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    rows = zip(texts, ours.encode(texts), ours.encode_with_offsets(texts), strict=True)
    for (text, plain, (ids, starts, ends)), expected, spans in zip(
        rows, reference['input_ids'], reference['offset_mapping'], strict=True
    ):
        assert plain.tolist() == ids.tolist() == expected, ascii(text)
        covered = {i for left, right in spans for i in range(left, right)}
        for index, start, end, (left, right) in zip(ids.tolist(), starts.tolist(), ends.tolist(), spans, strict=True):
            left, right = _without_spaces(text, left, right, SPACE if ours.family == 'sentencepiece' else ' ')
            if ours.pieces[index] == SPACE:  # The space that the tokenizer adds before the text has no characters.
                right = left
            assert start == left and end >= right, ascii(text)
            # Our span of a letter includes the marks composed with it by normalization; no span of theirs has them.
            assert covered.isdisjoint(range(right, end)) and ' ' not in text[right:end], ascii(text)


def _without_spaces(text, start, end, space):
    while start < end and (text[start].isspace() or text[start] == space):
        start += 1
    while start < end and (text[end - 1].isspace() or text[end - 1] == space):
        end -= 1
    return start, end


def test_ids_and_offsets_are_those_of_transformers(pair, paragraphs):
    ours, theirs, directory = pair
    added = [token['content'] for token in json.loads((directory / 'tokenizer.json').read_text())['added_tokens']]
    _assert_same(ours, theirs, _texts([line for line in paragraphs[:100] if line], ours, added))


def test_ids_and_offsets_of_real_text_are_those_of_transformers(pair, corpus_lines):
    ours, theirs, _ = pair
    _assert_same(ours, theirs, corpus_lines[:: len(corpus_lines) // 500])


def test_special_tokens_and_pairs_are_those_of_transformers(pair):
    ours, theirs, _ = pair
    cls = theirs.cls_token_id if theirs.cls_token else theirs.bos_token_id
    sep = theirs.sep_token_id if theirs.sep_token else theirs.eos_token_id
    assert (ours.cls_id, ours.sep_id) == (cls, sep)
    unk = theirs.unk_token_id if theirs.unk_token else theirs.mask_token_id
    assert (ours.pad_id, ours.mask_id, ours.unk_id) == (theirs.pad_token_id, theirs.mask_token_id, unk)
    assert set(theirs.all_special_ids) <= set(ours.special_ids.tolist())
    a, b = (ids.tolist() for ids in ours.encode(['A house.', 'and the river']))
    row = theirs('A house.', 'and the river')
    assert row['input_ids'] == [cls, *a, *[sep] * ours.separators, *b, sep] and 'token_type_ids' not in row


def test_saved_files_give_the_same_ids(pair, paragraphs, tmp_path):
    ours, theirs, directory = pair
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).unk_token == theirs.unk_token
    assert again.fingerprint == ours.fingerprint and again.special_ids.tolist() == ours.special_ids.tolist()
    added = [token['content'] for token in json.loads((directory / 'tokenizer.json').read_text())['added_tokens']]
    _assert_same(again, transformers.AutoTokenizer.from_pretrained(tmp_path), _texts(paragraphs[:20], ours, added))


def test_single_words_have_the_pieces_of_words_in_a_text(pair):
    ours, _, _ = pair
    words = ['the', 'statement', 'is', 'returned']
    whole = ours.encode([' '.join(['x', *words])])[0].tolist()
    single = ours.encode([ours.word_prefix + word for word in words])
    assert whole[-sum(map(len, single)) :] == np.concatenate(single).tolist()
    assert not any(ours.continues_word[ids[0]] for ids in single)


def test_dropout_is_ignored(paragraphs, tmp_path):
    write_tokenizer('modern', paragraphs[:200], tmp_path, size=400)
    ids = load_tokenizer(tmp_path).encode(paragraphs[:5])
    file = tmp_path / 'tokenizer.json'
    settings = json.loads(file.read_text())
    settings['model']['dropout'] = 0.9
    file.write_text(json.dumps(settings))
    for one, other in zip(load_tokenizer(tmp_path).encode(paragraphs[:5]), ids, strict=True):
        assert np.array_equal(one, other)


def test_a_prefix_marks_the_pieces_that_continue_a_word(paragraphs, tmp_path):
    for kind in ('prefixed', 'unmarked'):
        write_tokenizer(kind, paragraphs[:200], tmp_path, size=300)
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.continues_word.tolist() == [piece.startswith('##') for piece in tokenizer.pieces]
        assert tokenizer.continues_word.any() == (kind == 'prefixed')


def test_decoding_restores_a_text(pair):
    ours, _, _ = pair
    text = 'The naïve café, 你好 🐈.'
    assert ours.decode(ours.encode([text])[0]).strip() == text or ours.unk_id in ours.encode([text])[0]


@pytest.fixture
def files(once, paragraphs, tmp_path):
    """Returns a directory with a tokenizer like Gemma's, and the content of its tokenizer_config.json."""
    source = once('gemma-tokenizer', lambda folder: write_tokenizer('gemma', paragraphs[:300], folder, size=500))
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return tmp_path, json.loads((tmp_path / 'tokenizer_config.json').read_text())


def test_special_tokens_are_read_from_special_tokens_map(files):
    directory, config = files
    expected = load_tokenizer(directory)
    names = {key: {'content': config.pop(key)} for key in list(config) if key.endswith('_token')}
    (directory / 'tokenizer_config.json').write_text(json.dumps(config))
    with pytest.raises(UserError, match=r'pieces without \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]'):
        load_tokenizer(directory)
    (directory / 'special_tokens_map.json').write_text(json.dumps(names))
    assert load_tokenizer(directory).cls_id == expected.cls_id
    (directory / 'tokenizer_config.json').write_text(json.dumps({'bos_token': '<eos>', 'cls_token': None}))
    assert load_tokenizer(directory).cls_id == expected.sep_id


def test_special_tokens_of_bert_take_precedence_over_those_of_a_decoder(paragraphs, tmp_path):
    config = write_tokenizer('modern', paragraphs[:200], tmp_path, size=400)
    del config['cls_token'], config['sep_token']
    config |= {'bos_token': '<|endoftext|>', 'eos_token': '<|endoftext|>'}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert [tokenizer.pieces[i] for i in (tokenizer.cls_id, tokenizer.sep_id)] == ['[CLS]', '[SEP]']


def test_added_tokens_of_the_configuration_take_precedence(files):
    """As in transformers: tokenizer_config.json may have newer flags than tokenizer.json."""
    directory, config = files
    plain = {'rstrip': False, 'normalized': False, 'single_word': False}
    tokens = {'4': {'content': '<mask>', 'lstrip': False, 'special': True, **plain}}
    tokens['500'] = {'content': '<new>', 'lstrip': False, 'special': False, **plain}
    text = ['the  <mask> of<new>']
    before = load_tokenizer(directory).encode(text)[0].tolist()
    (directory / 'tokenizer_config.json').write_text(json.dumps({**config, 'added_tokens_decoder': tokens}))
    ours, theirs = load_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory)
    assert before != ours.encode(text)[0].tolist() == theirs(text[0], add_special_tokens=False)['input_ids']


def test_tokenizer_json_takes_precedence_over_a_model_without_special_tokens(files, sentencepiece_model):
    directory, _ = files
    (directory / 'tokenizer.model').write_bytes(b'the pieces of a decoder')
    assert load_tokenizer(directory).pieces[2] == '<bos>'
    sentencepiece_model.save(directory)
    assert load_tokenizer(directory).fingerprint == sentencepiece_model.fingerprint


def test_a_model_of_another_type_is_refused(files):
    directory, _ = files
    settings = json.loads((directory / 'tokenizer.json').read_text())
    settings['model']['type'] = 'Words'
    (directory / 'tokenizer.json').write_text(json.dumps(settings))
    with pytest.raises(UserError, match="found a model of the type 'Words', expected WordPiece, WordLevel, Unigram or"):
        load_tokenizer(directory)


def test_gaps_between_ids_are_refused(files):
    directory, _ = files
    settings = json.loads((directory / 'tokenizer.json').read_text())
    vocab = settings['model']['vocab']
    vocab[max(vocab, key=vocab.get)] = 510
    (directory / 'tokenizer.json').write_text(json.dumps(settings))
    with pytest.raises(UserError, match='found 500 pieces with ids up to 510, expected ids from 0 without gaps'):
        load_tokenizer(directory)


def test_a_tokenizer_that_never_adds_a_space_is_not_changed():
    settings = {'pre_tokenizer': {'type': 'Metaspace', 'prepend_scheme': 'never', 'add_prefix_space': False}}
    before = copy.deepcopy(settings)
    assert not set_prefix_space(settings, True) and settings == before
