"""Tests that a byte-level BPE encodes a space before a sentence if the text has one, or at the start of a line."""

import json

import pytest

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.vocabulary import train_byte_bpe

LINES = ['The cat sat. It sat there! Why not?', 'Then the cat ran. It ran on.']
CHINESE = ['我来了。你呢？好！我们 走了。 他说。']
TEXTS = [(LINES, 1 << 20, 5, ''), (LINES, 10, 9, ''), (CHINESE, 1 << 20, 5, ''), (LINES, 1 << 20, 5, 'WhitespaceSplit')]


@pytest.mark.parametrize(('lines', 'limit', 'parts', 'first_step'), TEXTS)
@pytest.mark.parametrize('prefix_space', [False, True])
def test_the_sentences_of_a_document_have_the_tokens_of_its_text(
    monkeypatch, tmp_path, prefix_space, lines, limit, parts, first_step
):
    monkeypatch.setattr('bertjax.corpus.shard_writer.BATCH_CHARACTERS', limit)  # a longer sentence is cut
    train_byte_bpe(lines * 9, vocab_size=300, lowercase=False).save(tmp_path / 'tokenizer')
    path = tmp_path / 'tokenizer' / 'tokenizer.json'
    settings = json.loads(path.read_text())
    byte_level = {**settings['pre_tokenizer'], 'add_prefix_space': prefix_space}
    steps = [{'type': first_step}, byte_level]
    settings['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': steps} if first_step else byte_level
    path.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(path)
    (tmp_path / 'text.txt').write_text('\n'.join(lines) + '\n')
    options = CorpusOptions(workers=1, heldout=0.0)
    build_store(str(tmp_path / 'text.txt'), tmp_path / 'store', tokenizer, options, progress=False)
    split = open_store(tmp_path / 'store').split('train')
    assert len(split.sentence_offsets) == parts + 1
    ids = split.tokens(0, int(split.sentence_offsets[-1])).tolist()
    assert ids == tokenizer.encode([' '.join(lines)])[0].tolist()
