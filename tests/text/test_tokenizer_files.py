"""Tests that unusual tokenizer files are read, and that invalid ones are errors of one line with a fix."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from bertjax.errors import UserError
from bertjax.text.bert_settings import bert_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.vocabulary import train_byte_bpe
from bertjax.text.wordpiece import WordPieceTokenizer

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def vocab(*pieces: str) -> bytes:
    return ''.join(f'{piece}\n' for piece in pieces).encode()


@pytest.mark.parametrize(
    ('name', 'data', 'words'),
    [
        ('vocab.txt', b'', ['empty']),
        ('vocab.txt', vocab(*SPECIAL[:4], 'a'), ['[MASK]', 'without']),
        ('vocab.txt', vocab('the', 'of'), ['[PAD] [UNK] [CLS] [SEP] [MASK]']),
        ('vocab.txt', vocab(*SPECIAL, 'a', 'b', 'a\t'), ['vocab.txt:8', "'a'", 'entry 6']),
        ('vocab.txt', vocab(*SPECIAL, 'a', '', 'b'), ['vocab.txt:7', 'blank']),
        ('vocab.txt', b'\x89PNG\r\n\x1a\n\xff\xfe', ['UTF-8']),
        ('vocab.txt', b'[PAD]\n\0\0\0', ['binary']),
        ('tokenizer.json', b'', ['empty']),
        ('tokenizer.json', b'{"model": ', ['JSON']),
        ('tokenizer.json', b'[1, 2]', ['list']),
        ('tokenizer.json', b'{"vocab_size": 3}', ['without a model']),
        ('tokenizer.json', b'{"model": {"type": "WordPiece", "vocab": {"[PAD]": 0, "a": 2}}}', ['from 0 without gaps']),
        ('tokenizer.json', b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', ['BPE']),
        ('tokenizer.model', b'', ['empty']),
        ('tokenizer.model', b'not a model at all', ['SentencePiece']),
    ],
)  # fmt: skip
def test_invalid_files_are_errors(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(UserError) as error:
            load_tokenizer(path)
        assert name in error.value.where and error.value.fix
        for word in words:
            assert word in str(error.value)


def test_white_space_after_a_piece_is_not_part_of_it(tmp_path):
    pieces = ['the ', 'covid\t', 'city\u3000', 'a\u2028', 'b\x85', 'c\x1c', '\u3000', 'd']
    (tmp_path / 'vocab.txt').write_bytes(vocab(*SPECIAL, *pieces))
    text = 'The covid city a b c d'
    ids = load_tokenizer(tmp_path / 'vocab.txt').encode([text])[0].tolist()
    theirs = AutoTokenizer.from_pretrained(tmp_path, tokenizer_type='bert')
    assert ids == theirs(text, add_special_tokens=False)['input_ids'] == [5, 6, 7, 8, 9, 1, 12]


@pytest.mark.parametrize('number', [2**31, 10**300, -1, 1.0, True])
@pytest.mark.parametrize('kind', ['WordPiece', 'BPE', 'WordLevel'])
def test_an_impossible_id_is_an_error(tmp_path, kind: str, number):
    """`tokenizers` would allocate memory for the id and might abort; an added token hides the id from other checks."""
    model = {'type': kind, 'vocab': {p: i for i, p in enumerate(SPECIAL)} | {'[PAD]': number}, 'merges': []}
    splits = {'WordPiece': 'BertPreTokenizer', 'BPE': 'ByteLevel', 'WordLevel': 'WhitespaceSplit'}
    if kind == 'WordPiece':
        del model['merges']
    settings = {
        'model': model,
        'pre_tokenizer': {'type': splits[kind]},
        'added_tokens': [{'id': 0, 'content': '[PAD]'}],
    }
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings))
    with pytest.raises(
        UserError, match=r'tokenizer\.json: found (5 pieces with ids up to|settings that cannot be loaded)'
    ):
        load_tokenizer(tmp_path)


def test_two_ids_of_an_added_token_are_an_error(tmp_path):
    WordPieceTokenizer(bert_settings([*SPECIAL, 'a'], lowercase=True)).save(tmp_path)
    settings = json.loads((tmp_path / 'tokenizer.json').read_text())
    settings['added_tokens'][-1]['id'] = 5
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"tokenizer\.json: found the ids 4 and 5 for '\[MASK\]', expected one id"):
        load_tokenizer(tmp_path)


def test_invalid_settings_are_an_error(tmp_path):
    settings = {
        'model': {'type': 'WordPiece', 'vocab': {p: i for i, p in enumerate(SPECIAL)}},
        'normalizer': {'type': 'X'},
    }
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings))
    with pytest.raises(UserError, match='cannot be loaded'):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize('name', ['bert-base-uncased', 'missing/vocab.txt'])
def test_a_missing_path_is_an_error(tmp_path, name):
    with pytest.raises(UserError, match='found nothing'):
        load_tokenizer(tmp_path / name)


def test_an_empty_directory_is_an_error(tmp_path):
    with pytest.raises(UserError, match='without a vocabulary'):
        load_tokenizer(tmp_path)


def test_a_case_that_contradicts_the_normalizer_is_an_error(tmp_path):
    WordPieceTokenizer(bert_settings([*SPECIAL, 'a'], lowercase=True)).save(tmp_path)
    settings = json.loads((tmp_path / 'tokenizer.json').read_text())
    (tmp_path / 'tokenizer.json').write_text(json.dumps({**settings, 'normalizer': {'type': 'Lowercase'}}))
    assert load_tokenizer(tmp_path / 'tokenizer.json').lowercase
    (tmp_path / 'tokenizer_config.json').write_text('{"do_lower_case": false}')
    with pytest.raises(UserError, match='a custom normalizer that lowers case, expected do_lower_case=True'):
        load_tokenizer(tmp_path / 'tokenizer.json')


def test_a_sequence_of_normalizers_is_saved_without_changes(tmp_path):
    pieces = [*SPECIAL, '\u4f60\u597d', '\u4f60', '##\u597d', '\u597d', 'caf\u00e9', 'cafe']
    WordPieceTokenizer(bert_settings(pieces, lowercase=False)).save(tmp_path)
    settings = json.loads((tmp_path / 'tokenizer.json').read_text())
    bert = {'type': 'BertNormalizer', 'clean_text': True, 'handle_chinese_chars': False, 'strip_accents': None}
    steps = [{'type': 'Lowercase'}, {**bert, 'lowercase': False}]
    settings['normalizer'] = {'type': 'Sequence', 'normalizers': steps}
    (tmp_path / 'foreign').mkdir()
    (tmp_path / 'foreign' / 'tokenizer.json').write_text(json.dumps(settings))
    foreign = load_tokenizer(tmp_path / 'foreign')
    foreign.save(tmp_path / 'again')
    again = load_tokenizer(tmp_path / 'again')
    assert again.fingerprint == foreign.fingerprint
    texts = ['\u4f60\u597d', 'Caf\u00e9']
    expected = [[pieces.index('\u4f60\u597d')], [pieces.index('caf\u00e9')]]
    assert [ids.tolist() for ids in again.encode(texts)] == expected == [i.tolist() for i in foreign.encode(texts)]


@pytest.mark.parametrize('place', ['added_tokens.json', 'added_tokens_decoder'])
@pytest.mark.parametrize('file', ['vocab.txt', 'tokenizer.json', 'vocab.json'])
def test_added_tokens_beside_the_vocabulary_are_read(tmp_path, file, place):
    text = 'hello [e1] hello'
    if file == 'vocab.json':
        train_byte_bpe([text.replace('[e1]', 'word')] * 9, vocab_size=270, lowercase=False).save(tmp_path)
        model = json.loads((tmp_path / 'tokenizer.json').read_text())['model']
        (tmp_path / 'vocab.json').write_text(json.dumps(model['vocab']))
        (tmp_path / 'merges.txt').write_text(''.join(f'{a} {b}\n' for a, b in model['merges']))
    else:
        WordPieceTokenizer(bert_settings([*SPECIAL, 'hello', '[', 'e', '##1', ']'], lowercase=True)).save(tmp_path)
    for other in {'vocab.txt', 'tokenizer.json', 'vocab.json'} - {file}:
        (tmp_path / other).unlink(missing_ok=True)
    plain = load_tokenizer(tmp_path)
    new, known = plain.vocab_size, plain.pieces[-1]
    config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
    config['additional_special_tokens'] = ['[e1]']
    # Ids that leave a gap or contradict the vocabulary are corrected as in transformers.
    if place == 'added_tokens.json':
        (tmp_path / place).write_text(json.dumps({'[e1]': new + 9, known: new + 3}))
    else:
        flags = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)
        config[place] = {str(new + 9): {'content': '[e1]', 'special': True, **flags}}
        (tmp_path / 'added_tokens.json').write_text(json.dumps({'unread': new}))
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    extended = load_tokenizer(tmp_path)
    (ids,) = extended.encode([text])
    assert new in ids and len(ids) < len(plain.encode([text])[0]) and extended.vocab_size == new + 1
    assert new in extended.special_ids
    extended.save(tmp_path / 'again')
    assert load_tokenizer(tmp_path / 'again').encode([text])[0].tolist() == ids.tolist()
    theirs = AutoTokenizer.from_pretrained(tmp_path / 'again')
    assert theirs(text, add_special_tokens=False)['input_ids'] == ids.tolist()
    assert '[e1]' in theirs.all_special_tokens  # as in the original; run_mlm never masks these


@pytest.mark.parametrize('file', ['vocab.txt', 'tokenizer.json'])
@pytest.mark.parametrize('place', ['tokenizer_config.json', 'special_tokens_map.json'])
def test_a_piece_that_the_configuration_names_special_is_not_split(tmp_path, file, place):
    pieces = [*SPECIAL, 'hello', '[', 'e', '##1', ']', '[E1]', '[E2]']
    tokenizer = WordPieceTokenizer(bert_settings(pieces, lowercase=True))
    tokenizer.save(tmp_path)
    (tmp_path / ('tokenizer.json' if file == 'vocab.txt' else 'vocab.txt')).unlink()
    second = {'__type': 'AddedToken', 'content': '[E2]', 'lstrip': True}
    config = {'eos_token': '[E1]', 'additional_special_tokens': [second, '[E3]']}
    if place == 'tokenizer_config.json':
        config |= json.loads((tmp_path / place).read_text())
    (tmp_path / place).write_text(json.dumps(config))
    text = 'hello[E1] [e1]  [E2] hello'
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = ours.encode([text])[0].tolist()
    assert ids == theirs(text, add_special_tokens=False)['input_ids']
    assert [pieces[i] for i in ids] == ['hello', '[E1]', '[', 'e', '##1', ']', '[E2]', 'hello']
    assert {pieces.index('[E1]'), pieces.index('[E2]')} < {*ours.special_ids.tolist()}
    assert ours.pieces == pieces  # no piece is added, because the model would lack embedding rows for it


@pytest.mark.parametrize(
    ('cls', 'config', 'accents'),
    [
        ('BertTokenizer', {'strip_accents': None}, None),
        ('DistilBertTokenizerFast', {}, None),
        ('BertTokenizer', {'strip_accents': False}, False),
        ('PreTrainedTokenizerFast', {}, False),
    ],
)
def test_the_class_of_bert_takes_its_defaults_for_options_that_are_not_given(tmp_path, cls, config, accents):
    pieces = [*SPECIAL, 'cafe', 'caf\u00e9']
    WordPieceTokenizer(bert_settings(pieces, lowercase=True, strip_accents=False)).save(tmp_path)
    config |= {'tokenizer_class': cls, 'do_lower_case': True}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    (ids,) = load_tokenizer(tmp_path / 'tokenizer.json').encode(['Caf\u00e9'])
    assert ids.tolist() == [pieces.index('caf\u00e9' if accents is False else 'cafe')]
    assert AutoTokenizer.from_pretrained(tmp_path)('Caf\u00e9', add_special_tokens=False)['input_ids'] == ids.tolist()


@pytest.mark.parametrize(('kind', 'value'), [('word', 'mecab'), ('subword', 'character')])
def test_japanese_tokenizers_that_need_a_dictionary_are_refused(tmp_path, kind, value):
    (tmp_path / 'vocab.txt').write_text('\n'.join(SPECIAL) + '\n')
    load_tokenizer(tmp_path)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({f'{kind}_tokenizer_type': value}))
    with pytest.raises(UserError, match=f"{value}.* expected BERT's"):
        load_tokenizer(tmp_path)


def _train_wordpiece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(['the cat sat'] * 9, trainers.WordPieceTrainer(vocab_size=60, special_tokens=SPECIAL))
    return tokenizer


def _train_byte_bpe() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=['<s>', '<pad>', '</s>', '<unk>', '<mask>'])
    tokenizer.train_from_iterator(['the cat sat'] * 9, trainer)
    return tokenizer


def _train_unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        ['the cat sat'] * 9, trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token='[UNK]')
    )
    return tokenizer


_ONLY_CLS = processors.TemplateProcessing(single='<s> $A', pair='<s> $A $B', special_tokens=[('<s>', 0)])


@pytest.mark.parametrize(
    ('train', 'processor'),
    [
        (_train_wordpiece, None),
        (_train_unigram, None),
        (_train_byte_bpe, None),
        (_train_byte_bpe, processors.ByteLevel()),
        (_train_byte_bpe, _ONLY_CLS),
        (_train_byte_bpe, processors.Sequence([processors.ByteLevel(), _ONLY_CLS])),
    ],
)
def test_a_saved_tokenizer_adds_cls_and_sep_and_decodes_text(tmp_path, train, processor):
    """The library `tokenizers` saves files without these steps."""
    tokenizer = train()
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    ours = load_tokenizer(tmp_path)
    a, b = ours.encode(['the cat', 'sat'])
    assert ours.decode(a) == 'the cat'
    ours.save(tmp_path / 'saved')
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / 'saved' / 'tokenizer.json'))
    pair = saved.encode('the cat', 'sat')
    assert pair.ids == [ours.cls_id, *a, ours.sep_id, *b, ours.sep_id]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert saved.decode(pair.ids) == ('the catsat' if train is _train_byte_bpe else 'the cat sat')
    assert load_tokenizer(tmp_path / 'saved').fingerprint == ours.fingerprint


@pytest.mark.parametrize('kind', ['WordPiece', 'BPE', 'Unigram'])
def test_special_tokens_that_a_file_does_not_list_are_special(tmp_path, kind: str):
    """A tokenizer that was made from a vocabulary has no added tokens."""
    pieces = [*SPECIAL, 'a', 'b', 'ab']
    model = {
        'WordPiece': {'vocab': {piece: i for i, piece in enumerate(pieces)}, 'unk_token': '[UNK]'},
        'BPE': {'vocab': {piece: i for i, piece in enumerate(pieces)}, 'merges': [['a', 'b']], 'unk_token': '[UNK]'},
        'Unigram': {'vocab': [[piece, -1.0] for piece in pieces], 'unk_id': 1},
    }[kind]
    model |= {'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100} if kind == 'WordPiece' else {}
    settings = {'model': {'type': kind, **model}, 'pre_tokenizer': {'type': 'BertPreTokenizer'}, 'added_tokens': []}
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings | {'version': '1.0'}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(['ab [MASK]'])[0].tolist() == [7, 4]
    tokenizer.save(tmp_path / 'saved')
    assert load_tokenizer(tmp_path / 'saved').fingerprint == tokenizer.fingerprint
