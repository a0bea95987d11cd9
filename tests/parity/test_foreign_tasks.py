"""Tests that `bertjax.load` of fine-tuned models of transformers gives the results of transformers."""

import pathlib

import numpy as np
import pytest
import safetensors.numpy
import transformers

import bertjax
from bertjax.errors import UserError
from bertjax.inference.task_methods import answer_records
from bertjax.tasks.reading.texts import Blank, number_lines
from bertjax.tasks.tagging.predictions import STRATEGIES
from bertjax.text.vocabulary import train_wordpiece

TEXT = 'the river runs over old stone and a bird sings near the house'
SENTENCES = ['the river runs', 'a bird sings near the old house', 'stone']


@pytest.fixture
def saved(torch, tmp_path: pathlib.Path):
    """saved(class name, **config) -> (small random transformers model, its tokenizer, our model of the directory)."""

    def make(kind: str, **values):
        torch.manual_seed(0)
        tokenizer = train_wordpiece([TEXT] * 3, vocab_size=60, lowercase=True)
        sizes = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 64}
        config = transformers.BertConfig(
            vocab_size=tokenizer.vocab_size, max_position_embeddings=64, initializer_range=0.3, **sizes, **values
        )
        model = getattr(transformers, kind)(config).eval()
        model.save_pretrained(tmp_path)
        tokenizer.save(tmp_path)
        return model, transformers.AutoTokenizer.from_pretrained(tmp_path), bertjax.load(tmp_path)

    return make


def probabilities(torch, model, inputs) -> np.ndarray:
    with torch.no_grad():
        return model(**inputs).logits.softmax(-1).numpy()


def test_labels_of_texts_are_equal(torch, saved):
    names = {0: 'calm', 1: 'wild', 2: 'old'}
    model, tokenizer, bert = saved(
        'BertForSequenceClassification', id2label=names, label2id={x: i for i, x in names.items()}
    )
    assert 'labels of texts' in repr(bert) and 'not used' not in repr(bert)
    theirs = probabilities(torch, model, tokenizer(SENTENCES, padding=True, return_tensors='pt'))
    for answer, row in zip(bert.classify(SENTENCES), theirs, strict=True):
        assert list(answer['probabilities']) == list(names.values()) and answer['label'] == names[row.argmax()]
        np.testing.assert_allclose(list(answer['probabilities'].values()), row, atol=1e-5)
    pair = tokenizer(SENTENCES[0], SENTENCES[1], return_tensors='pt')
    answer = bert.classify(SENTENCES[0], SENTENCES[1])
    np.testing.assert_allclose(list(answer['probabilities'].values()), probabilities(torch, model, pair)[0], atol=1e-5)


@pytest.mark.slow
def test_scores_and_multi_label_probabilities_are_equal(torch, saved):
    model, tokenizer, bert = saved('BertForSequenceClassification', num_labels=1)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors='pt')
    with torch.no_grad():
        scores = model(**inputs).logits[:, 0].numpy()
    np.testing.assert_allclose([answer['score'] for answer in bert.classify(SENTENCES)], scores, atol=1e-5)
    model, _, bert = saved('BertForSequenceClassification', num_labels=3, problem_type='multi_label_classification')
    with torch.no_grad():
        shares = model(**inputs).logits.sigmoid().numpy()
    ours = [list(answer['probabilities'].values()) for answer in bert.classify(SENTENCES)]
    np.testing.assert_allclose(ours, shares, atol=1e-5)


def test_tags_of_words_are_equal(torch, saved):
    names = {0: 'NOUN', 1: 'VERB', 2: 'DET'}
    model, tokenizer, bert = saved('BertForTokenClassification', id2label=names)
    inputs = tokenizer(
        [text.split() for text in SENTENCES], is_split_into_words=True, padding=True, return_tensors='pt'
    )
    best = probabilities(torch, model, inputs).argmax(-1)
    for i, answer in enumerate(bert.tag(SENTENCES)):
        first = [inputs.word_ids(i).index(word) for word in range(len(SENTENCES[i].split()))]
        assert list(answer['tags']) == [names[n] for n in best[i][first]]
    assert bert.tag([SENTENCES[1].split()])[0]['tags'] == bert.tag(SENTENCES[1])['tags']


def test_context_is_read_as_from_the_lines_of_a_file(saved):
    _, _, bert = saved('BertForTokenClassification', id2label={0: 'NOUN', 1: 'VERB', 2: 'DET'})
    bert.task.context = True
    texts = [SENTENCES[0], '\x01', *SENTENCES[1:], '', SENTENCES[-1]]
    items = bert.task.parse(list(number_lines('\n'.join(texts))), 'file')
    of_file = answer_records(bert._runner, [item for item in items if not isinstance(item, Blank)])
    first, _, second, third, _, last = bert.tag(texts)
    assert [first, second, third, last] == of_file and third['probabilities'] != last['probabilities']


def test_entities_equal_those_of_the_pipeline_for_each_strategy(torch, saved):
    names = {0: 'O', 1: 'B-X', 2: 'I-X', 3: 'B-Y', 4: 'I-Y'}
    model, tokenizer, bert = saved('BertForTokenClassification', id2label=names)
    texts = ["The old-river's birds, (Stone!) sing: rivers", ' a\u00a0bird…\n鳥stones. the\x07house', 'x', '']
    for strategy in STRATEGIES:
        pipeline = transformers.pipeline(
            'token-classification', model=model, tokenizer=tokenizer, aggregation_strategy=strategy
        )
        for text, answer in zip(texts, bert.tag(texts, aggregation_strategy=strategy), strict=True):
            theirs, ours = pipeline(text) if text else [], answer['entities']
            spans = [(entity['entity_group'], entity['start'], entity['end']) for entity in theirs]
            assert [(entity['type'], entity['start'], entity['end']) for entity in ours] == spans
            scores = [entity['score'] for entity in theirs]
            np.testing.assert_allclose([entity['score'] for entity in ours], scores, atol=1e-5)
            assert all(text[entity['start'] : entity['end']] == entity['text'] for entity in ours)
            assert [text[start:end] for start, end in answer['offsets']] == list(answer['words'])
    assert (
        bert.tag(texts) == bert.tag(texts, aggregation_strategy='first') != bert.tag(texts, aggregation_strategy='max')
    )
    words = bert.tag([list(bert.tag(texts[0])['words'])])[0]
    assert words['tags'] == bert.tag(texts[0])['tags'] and 'offsets' not in words
    for strategy, text in (('none', 'a'), (['max'], 'a'), ('simple', [['a']])):
        with pytest.raises(UserError, match='aggregation_strategy'):
            bert.tag(text, aggregation_strategy=strategy)


def test_answers_to_questions_are_equal(torch, saved):
    model, tokenizer, bert = saved('BertForQuestionAnswering')
    inputs = tokenizer('a bird', TEXT, return_tensors='pt', return_offsets_mapping=True)
    offsets, context = inputs.pop('offset_mapping')[0].tolist(), inputs['token_type_ids'][0].bool()
    context[-1] = False  # [SEP]
    with torch.no_grad():
        outputs = model(**inputs)
    scores = outputs.start_logits[0][:, None] + outputs.end_logits[0][None, :]
    allowed = context[:, None] & context[None, :] & torch.ones_like(scores, dtype=bool).triu()
    start, end = divmod(int(scores.masked_fill(~allowed, -1e9).argmax()), len(offsets))
    answer = bert.answer('a bird', TEXT)
    assert (answer['start'], answer['end']) == (offsets[start][0], offsets[end][1])
    assert answer['answer'] == TEXT[answer['start'] : answer['end']]


def test_probabilities_of_several_endings_are_equal(torch, saved):
    model, tokenizer, bert = saved('BertForMultipleChoice')
    inputs = tokenizer([TEXT] * 3, SENTENCES, padding=True, return_tensors='pt')
    theirs = probabilities(torch, model, {name: x[None] for name, x in inputs.items()})[0]
    answer = bert.choose(TEXT, SENTENCES)
    np.testing.assert_allclose(answer['probabilities'], theirs, atol=1e-5)


def test_the_repr_shows_unused_tensors(saved, tmp_path: pathlib.Path):
    saved('BertForPreTraining')
    path = tmp_path / 'model.safetensors'
    tensors = safetensors.numpy.load_file(path) | {f'other.{i}': np.zeros(3, np.float32) for i in range(5)}
    safetensors.numpy.save_file(tensors, path, metadata={'format': 'pt'})
    assert 'other.0, other.1, other.2 and 2 more' in repr(bertjax.load(tmp_path))
