"""Tests that tasks encode pairs as transformers does for RoBERTa-like tokenizers: `<s> A </s></s> B </s>`."""

import json

import pytest
import tokenizers
from tokenizers import models, trainers

from bertjax.tasks.choice.files import ChoiceQuestion as Choice
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.sentence.features import text_features
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.features import word_pieces
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.vocabulary import train_byte_bpe

FIRST = ['The cat sat on the mat.', 'A hat', 'The cat sat on the mat, and on the hat, and on the rat.', '']
SECOND = ['Did it?', 'The cat sat on the mat, and on the hat, and on the rat, day after day.', 'on the mat', 'sat']


@pytest.fixture(scope='module', params=['bpe', 'unigram'])
def both(request, tmp_path_factory):
    """Returns our tokenizer and transformers' for one file, like RoBERTa's (bpe) or XLM-R's (unigram)."""
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    path = tmp_path_factory.mktemp('tokenizer')
    if request.param == 'bpe':
        train_byte_bpe([*FIRST, *SECOND] * 9, vocab_size=300, lowercase=False).save(path)
    else:
        _like_xlm_roberta(path)
    return load_tokenizer(path), transformers.AutoTokenizer.from_pretrained(path)


def _like_xlm_roberta(path):
    special = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
    model = tokenizers.Tokenizer(models.Unigram())
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.train_from_iterator(
        [*FIRST, *SECOND] * 9,
        trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token='<unk>', show_progress=False),
    )
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single='<s> $A </s>', pair='<s> $A </s> </s> $B </s>', special_tokens=[('<s>', 0), ('</s>', 2)]
    )
    model.save(str(path / 'tokenizer.json'))
    names = {'cls': '<s>', 'sep': '</s>', 'pad': '<pad>', 'unk': '<unk>', 'mask': '<mask>'}
    config = {'tokenizer_class': 'PreTrainedTokenizerFast', **{f'{key}_token': name for key, name in names.items()}}
    (path / 'tokenizer_config.json').write_text(json.dumps(config))


def _rows(features):
    return [features.tokens[a:b].tolist() for a, b in zip(features.offsets[:-1], features.offsets[1:], strict=True)]


@pytest.mark.parametrize('seq_len', [16, 64])
def test_texts_and_pairs_are_encoded_as_in_transformers(both, seq_len):
    ours, theirs = both
    assert ours.separators == 2
    cut = {'truncation': 'longest_first', 'max_length': seq_len}
    options = dict(seq_len=seq_len, long='truncate', stride=0)
    pairs = text_features(FIRST, SECOND, None, ours, **options)
    assert _rows(pairs) == theirs(FIRST, SECOND, **cut)['input_ids']
    for row, second in zip(_rows(pairs), pairs.second.tolist(), strict=True):
        assert row[second - 2 : second] == [ours.sep_id] * 2
    assert _rows(text_features(FIRST, None, None, ours, **options)) == theirs(FIRST, **cut)['input_ids']


def test_questions_are_encoded_as_in_transformers(both):
    ours, theirs = both
    question = SquadQuestion('a', SECOND[0], FIRST[0], ('mat',), (FIRST[0].find('mat'),))
    features = SquadTask('', 64, stride=32, max_query=30).features([question], ours, training=False)
    assert _rows(features) == theirs([SECOND[0]], [FIRST[0]])['input_ids']
    at = int(features.row['start'][0])
    assert features.token['token_first'][at] == FIRST[0].find('mat')


def test_endings_are_encoded_as_in_transformers(both):
    ours, theirs = both
    task = MultipleChoiceTask('', 32)
    features = task.features([Choice('a:1', FIRST[0], '', tuple(SECOND[:2]), 0)], ours, training=True)
    assert _rows(features) == theirs([FIRST[0]] * 2, SECOND[:2], max_length=32, truncation=True)['input_ids']


def test_words_are_encoded_as_in_transformers(both):
    """In transformers, RoBERTa's tokenizer requires add_prefix_space for this."""
    ours, theirs = both
    words = FIRST[0].split()
    expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
    ids, first = word_pieces(words, ours)
    assert ids.tolist() == expected['input_ids']
    assert first[:-1].tolist() == [expected.word_ids().index(i) for i in range(len(words))]
