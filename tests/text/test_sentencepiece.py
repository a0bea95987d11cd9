"""Tests SentencePiece models as BERT tokenizers, and their tokenizer.json in transformers."""

import io
import pickle

import numpy as np
import pytest
import sentencepiece
from hard_text import HARD, SPECIAL, random_texts
from transformers import AutoTokenizer, BertConfig

from bertjax.errors import UserError
from bertjax.text.sentencepiece import SentencePieceTokenizer
from bertjax.text.sentencepiece_proto import unicode_normalizer
from bertjax.text.tokenizer import load_tokenizer


@pytest.fixture(scope='module')
def saved(sentencepiece_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp('saved')
    sentencepiece_model.save(directory)
    # The directory of an exported model also has a config.json, from which transformers chooses the class.
    BertConfig(vocab_size=sentencepiece_model.vocab_size).save_pretrained(directory)
    return directory


def test_the_attributes_of_a_trained_model(sentencepiece_model):
    pieces = sentencepiece_model.pieces
    special = ['[PAD]', '[unused0]', '[unused1]', '[unused2]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    assert pieces[:8] == special and sentencepiece_model.special_ids.tolist() == list(range(8))
    assert (sentencepiece_model.pad_id, sentencepiece_model.unk_id, sentencepiece_model.cls_id) == (0, 4, 5)
    assert (sentencepiece_model.sep_id, sentencepiece_model.mask_id) == (6, 7)
    assert not sentencepiece_model.continues_word[:8].any()
    assert sentencepiece_model.continues_word[8:].tolist() == [not piece.startswith('▁') for piece in pieces[8:]]
    assert sentencepiece_model.vocab_size == len(pieces) == 1500


def test_text_never_gives_a_special_token(sentencepiece_model):
    special = set(range(8)) - {sentencepiece_model.unk_id}
    for ids in sentencepiece_model.encode([*SPECIAL, *HARD]):
        assert ids.dtype == np.int32 and not special & set(ids.tolist())


def test_case_is_ignored_if_the_model_is_lowercase(sentencepiece_model):
    upper, lower = sentencepiece_model.encode(['THE Object', 'the object'])
    assert (upper.tolist() == lower.tolist()) == sentencepiece_model.lowercase


@pytest.mark.parametrize('source', ['.', 'tokenizer.model'])
def test_ids_equal_in_transformers(sentencepiece_model, saved, paragraphs, source):
    ours, theirs = load_tokenizer(saved / source), AutoTokenizer.from_pretrained(saved)
    assert ours.fingerprint == sentencepiece_model.fingerprint
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (0, 4, 7)
    texts = [*paragraphs[::4], *HARD, *random_texts(500, seed=3)]
    for text, ids, expected in zip(
        texts, ours.encode(texts), theirs(texts, add_special_tokens=False)['input_ids'], strict=True
    ):
        assert ids.tolist() == expected, ascii(text)
    a, b = (ids.tolist() for ids in ours.encode(['Good day', 'Hello']))
    pair = theirs('Good day', 'Hello')
    assert pair['input_ids'] == [5, *a, 6, *b, 6]
    assert pair['token_type_ids'] == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_ids_equal_in_transformers_on_real_text(sentencepiece_model, saved, corpus_lines):
    lines = corpus_lines[::100]
    theirs = AutoTokenizer.from_pretrained(saved)(lines, add_special_tokens=False)['input_ids']
    assert [ids.tolist() for ids in sentencepiece_model.encode(lines)] == theirs


def test_ids_are_those_of_sentencepiece(sentencepiece_model, saved):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(saved / 'tokenizer.model'))
    rule = 'nmt_nfkc_cf' if sentencepiece_model.lowercase else 'nmt_nfkc'
    texts = [unicode_normalizer(rule).normalize_str(text) for text in HARD]
    assert [ids.tolist() for ids in sentencepiece_model.encode(HARD)] == processor.encode(texts)


def test_tokenizer_json_suffices(sentencepiece_model, saved, tmp_path):
    (tmp_path / 'tokenizer.json').write_bytes((saved / 'tokenizer.json').read_bytes())
    exported = load_tokenizer(tmp_path)
    assert exported.family == 'sentencepiece' and exported.pieces == sentencepiece_model.pieces
    assert exported.lowercase == sentencepiece_model.lowercase
    assert exported.special_ids.tolist() == sentencepiece_model.special_ids.tolist()
    assert exported.continues_word.tolist() == sentencepiece_model.continues_word.tolist()
    expected = [ids.tolist() for ids in sentencepiece_model.encode([*HARD, 'a \ud800 b'])]
    assert [ids.tolist() for ids in pickle.loads(pickle.dumps(exported)).encode([*HARD, 'a \ud800 b'])] == expected
    assert exported.encode(['[MASK]'])[0].tolist() == [exported.mask_id]
    exported.save(tmp_path / 'again')
    assert load_tokenizer(tmp_path / 'again').fingerprint == exported.fingerprint


def test_decode_keeps_special_tokens(sentencepiece_model):
    (ids,) = sentencepiece_model.encode(['return the object'])
    ids = [sentencepiece_model.cls_id, *ids, sentencepiece_model.mask_id]
    assert sentencepiece_model.decode(ids) == '[CLS] return the object [MASK]'


def test_lone_surrogates_become_replacement_characters(sentencepiece_model):
    a, b, c, d = sentencepiece_model.encode(['a \ud800 b', 'a \ufffd b', '\ud83d\ude00', '😀'])
    assert a.tolist() == b.tolist() and c.tolist() == d.tolist()


def test_pickles_for_worker_processes(sentencepiece_model):
    other = pickle.loads(pickle.dumps(sentencepiece_model))
    assert other.fingerprint == sentencepiece_model.fingerprint
    assert [x.tolist() for x in other.encode(HARD)] == [x.tolist() for x in sentencepiece_model.encode(HARD)]


def test_a_foreign_model_keeps_the_wide_tilde(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['東京は10～20度です。', 'a~b 10～20 と ~ 波'] * 30), model_writer=model, vocab_size=45,
        hard_vocab_limit=False, control_symbols=['[CLS]', '[SEP]', '[MASK]'], pad_id=3, pad_piece='[PAD]',
        unk_piece='[UNK]', bos_id=-1, eos_id=-1, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(model.getvalue())
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text in ('10～20', '～a~bＡ～～', '東京は～\ud800。'):
        (ids,) = tokenizer.encode([text])
        readable = text.replace('\ud800', '\ufffd')
        assert ids.tolist() == library.encode(readable) == theirs(readable, add_special_tokens=False)['input_ids']
    _, starts, ends = tokenizer.encode_with_offsets(['～a～'])[0]
    assert (starts.tolist()[-1], ends.tolist()[-1]) == (2, 3)


@pytest.mark.parametrize('kind', ['unigram', 'bpe'])
def test_unknown_characters_of_a_model_with_byte_fallback_become_bytes(kind, paragraphs, tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(paragraphs[:400]), model_writer=model, vocab_size=600, model_type=kind,
        byte_fallback=True, control_symbols=['[CLS]', '[SEP]', '[MASK]'], pad_id=3, pad_piece='[PAD]',
        unk_piece='[UNK]', bos_id=-1, eos_id=-1, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(model.getvalue())
    tokenizer.save(tmp_path)
    (tmp_path / 'exported').mkdir()
    (tmp_path / 'exported' / 'tokenizer.json').write_bytes((tmp_path / 'tokenizer.json').read_bytes())
    theirs, exported = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path / 'exported')
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text in ('the 東京 object', '😀', 'naïve Ω.'):
        (ids,) = tokenizer.encode([text])
        assert any(tokenizer.pieces[i].startswith('<0x') for i in ids) and tokenizer.unk_id not in ids
        assert ids.tolist() == library.encode(text) == theirs(text, add_special_tokens=False)['input_ids']
        assert exported.encode([text])[0].tolist() == ids.tolist()
        assert tokenizer.decode([tokenizer.cls_id, *ids, tokenizer.sep_id]) == f'[CLS] {text} [SEP]'
        assert theirs.decode(ids) == exported.decode(ids) == text
        for index, start, end in zip(*tokenizer.encode_with_offsets([text])[0], strict=True):
            if tokenizer.pieces[index].startswith('<0x'):
                assert end == start + 1 and int(tokenizer.pieces[index][1:5], 16) in text[start:end].encode()


def test_a_model_that_keeps_case_contradicts_do_lower_case(saved, sentencepiece_model, tmp_path):
    (tmp_path / 'spiece.model').write_bytes((saved / 'tokenizer.model').read_bytes())
    (tmp_path / 'tokenizer_config.json').write_text('{"do_lower_case": true}')
    if sentencepiece_model.lowercase:
        assert load_tokenizer(tmp_path).lowercase
        return
    with pytest.raises(UserError, match='found a model that keeps case, expected do_lower_case=false'):
        load_tokenizer(tmp_path)
