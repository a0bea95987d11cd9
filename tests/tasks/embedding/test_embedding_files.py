"""Tests the formats of records for embeddings, their features, and errors with file and line."""

import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest

from bertjax.commands.evaluate import _labeled
from bertjax.config.files import load_recipe
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_data import TaskData
from bertjax.model.config import BertConfig
from bertjax.tasks.embedding.files import ROLES, Query, TextExample
from bertjax.tasks.embedding.splits import EmbeddingSplits
from bertjax.tasks.embedding.task import EmbeddingTask
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.splits import STEMS
from bertjax.text.tokenizer import Tokenizer

PAIRS = [
    {'anchor': 'a', 'positive': 'b'},
    {'anchor': 'a', 'positive': 'c', 'negative': 'd'},
    {'anchor': 'e', 'positive': 'b', 'negative': ['d', 'a b c d e f']},
]


def write(folder: pathlib.Path, name: str, rows: list[dict]) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def task(folder: pathlib.Path, **options) -> EmbeddingTask:
    return EmbeddingTask(str(folder), options.pop('seq_len', 6), **options)


def test_equal_texts_have_equal_ids(tmp_path: pathlib.Path, tokenizer: Tokenizer):
    write(tmp_path, 'train.jsonl', PAIRS)
    plain = task(tmp_path)
    features = plain.features(plain.records('train'), tokenizer, training=True)
    np.testing.assert_array_equal(features.row['text_ids'], [[1, 2, 0, 0], [1, 3, 4, 0], [5, 2, 4, 6]])
    assert features.sequence_lengths.tolist() == [3, 3, 0, 0, 3, 3, 3, 0, 3, 3, 3, 6]
    assert features.notes == ('1 of 9 texts are longer than config.seq_len=6 and lose their end',)
    prompted = task(tmp_path, query_prompt='x ', document_prompt='y ')
    tokens = prompted.features(prompted.records('train'), tokenizer, training=True)
    pieces = [''.join(tokenizer.pieces[i] for i in x) for x in np.split(tokens.tokens, tokens.offsets[1:-1])]
    assert pieces[:2] == ['[CLS]xa[SEP]', '[CLS]yb[SEP]']
    np.testing.assert_array_equal(tokens.row['text_ids'], features.row['text_ids'])  # Prompts do not change the ids.
    records = prompted.records('train')
    tokens = prompted.features(records, tokenizer, training=False)  # a row for each different anchor and positive
    rows = [''.join(tokenizer.pieces[i] for i in x) for x in np.split(tokens.tokens, tokens.offsets[1:-1])]
    assert rows == ['[CLS]xa[SEP]', '[CLS]xe[SEP]', '[CLS]yb[SEP]', '[CLS]yc[SEP]']
    vectors = np.eye(len(rows))[[0, 1, 0, 2]]
    cosines = prompted.predictions(records, tokens, {'embeddings': list(vectors)})
    texts = [(record.texts[0], record.texts[1]) for record in records]
    assert cosines == [float(pair == ('a', 'b')) for pair in texts]
    batch = features.batch(np.array([1, -1]), 8, tokenizer.pad_id)
    assert batch['input_ids'].shape == (2, 4, 8)
    assert not batch['text_ids'][1].any() and not batch['attention_mask'][1].any()


@pytest.mark.parametrize('record', [{'text': 'a'}, {'text_a': 'a', 'text_b': 'b', 'score': 1}, PAIRS[0]])
@pytest.mark.parametrize('document_prompt', ['', 'y '])
def test_documents_get_the_prompt_of_the_training(
    tmp_path: pathlib.Path, tokenizer: Tokenizer, record: dict, document_prompt: str
):
    """Training without anchors prefixes all texts with `query_prompt`."""
    write(tmp_path, 'train.jsonl', [record])
    write(tmp_path, 'dev.jsonl', PAIRS[:1])
    prompted = task(tmp_path, query_prompt='x ', document_prompt=document_prompt)
    prompted.learn(prompted.records('train'))
    expected = document_prompt or ('' if 'anchor' in record else 'x ')
    assert prompted.sentence_modules().prompts == {'query': 'x ', 'document': expected}
    tokens = prompted.features(prompted.records('dev'), tokenizer, training=False).tokens
    assert ''.join(tokenizer.pieces[i] for i in tokens) == f'[CLS]xa[SEP][CLS]{expected.strip()}b[SEP]'


def test_cached_features_have_the_prompt_of_the_training(
    tmp_path: pathlib.Path, tokenizer: Tokenizer, repository: pathlib.Path
):
    """Two models with the same options are evaluated in the same workdir."""
    write(tmp_path, 'dev.jsonl', PAIRS[:1])
    config = load_recipe(f'{repository}/configs/embed.py')
    config.data, config.task.query_prompt = str(tmp_path), 'x '
    settings, encoder = finetuning_settings(config), BertConfig(vocab_size=tokenizer.vocab_size)
    for form, expected in (('scored', '[CLS]xb[SEP]'), ('pairs', '[CLS]b[SEP]')):
        facts = {'learned': {'form': form, 'pool': 'mean'}}
        features = TaskData(settings, tmp_path, tokenizer, encoder, '', facts).split('dev').features
        assert ''.join(tokenizer.pieces[i] for i in features.tokens) == f'[CLS]xa[SEP]{expected}'


def test_scores_of_a_teacher_are_labels(tmp_path: pathlib.Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture):
    records = [{**PAIRS[1], 'score': [3, 1]}, {**PAIRS[2], 'score': [2.0, 0, -1]}]
    write(tmp_path, 'train.jsonl', records)
    distilled = task(tmp_path, max_score=2)
    distilled.learn(distilled.records('train'))
    assert '2 records for training with the loss margin_mse, 7 texts' in capsys.readouterr().out
    labels = distilled.features(distilled.records('train'), tokenizer, training=True).row['labels']
    np.testing.assert_array_equal(labels, [[1.5, 0.5, 0], [1, 0, -0.5]])
    rows = [','.join(map(json.dumps, ['a', 'b', 'd', score])) + '\n' for score in ('[3, 1]', '[2, 0]')]
    (tmp_path / 'table').mkdir()
    (tmp_path / 'table' / 'train.csv').write_text('anchor,positive,negative,score\n' + ''.join(rows))
    table = task(tmp_path / 'table').records('train')
    assert [record.teacher for record in table] == [(3, 1), (2, 0)]


def test_scores_of_pairs_for_a_search_are_ignored(tmp_path: pathlib.Path):
    write(tmp_path, 'dev.jsonl', [{**pair, 'score': 0.9} for pair in PAIRS])
    assert [query.text for query in task(tmp_path).records('dev')] == ['a', 'e']


def test_other_formats_and_column_names_are_read(tmp_path: pathlib.Path):
    (tmp_path / 'train.csv').write_text('question,answer\na,"b, c"\nd,e\n')
    embedding_task = task(tmp_path, anchor='question', positive='answer')
    assert [record.texts for record in embedding_task.records('train')] == [('a', 'b, c'), ('d', 'e')]
    (tmp_path / 'dev.tsv').write_text('text_a\ttext_b\tscore\na\tb\t0.5\n')
    assert (embedding_task.splits(), embedding_task.score) == (['dev'], 'spearman')
    assert embedding_task.records('dev')[0].score == 0.5


def test_negatives_in_several_columns_or_in_a_list_of_a_table(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', [{**PAIRS[0], 'neg_1': 'c', 'neg_2': 'd', 'neg_x': 'e'}, PAIRS[0]])
    records = task(tmp_path, negative='neg').records('train')
    assert [record.texts for record in records] == [('a', 'b', 'c', 'd'), ('a', 'b')]
    (tmp_path / 'pairs.csv').write_text('anchor,positive,negative\na,b,"[""c"", ""d, e""]"\na,b,[c]\n')
    records = task(tmp_path / 'pairs.csv').records('train')
    assert [record.texts for record in records] == [('a', 'b', 'c', 'd, e'), ('a', 'b', '[c]')]


@pytest.mark.slow
def test_parquet_files_are_read(tmp_path: pathlib.Path):
    arrow = pytest.importorskip('pyarrow', reason='writes Parquet')
    from pyarrow import parquet

    table = arrow.table({'anchor': ['a', 'b'], 'positive': ['c', 'd'], 'negative': [['e', 'f'], []]})
    parquet.write_table(table, tmp_path / 'train.parquet')
    assert [record.texts for record in task(tmp_path).records('train')] == [('a', 'c', 'e', 'f'), ('b', 'd')]


def test_pairs_of_dev_are_evaluated_as_a_search(tmp_path: pathlib.Path):
    write(tmp_path, 'dev.jsonl', PAIRS)
    queries = task(tmp_path).records('dev')
    assert [(query.text, query.relevant) for query in queries] == [('a', {0: 1, 1: 1}), ('e', {0: 1})]
    assert queries[0].corpus.texts == ['b', 'c', 'd', 'a b c d e f'] and isinstance(queries[0], Query)
    write(tmp_path, 'train.jsonl', PAIRS)
    assert list(task(tmp_path).splits()) == ['dev']  # a search in the training pairs is not supported


SCORED = {'text_a': 'a', 'text_b': 'b', 'score': 5}
REFUSED = {
    'no form': ([{'a': 'b'}], {}, r":1: found the columns 'a', expected anchor and positive, or text_a and text_b, or"),
    'no text': ([*PAIRS, {'anchor': 'a', 'positive': ' '}], {}, r':4: found no text in the column positive'),
    'no column': ([*PAIRS, {'anchor': 'a'}], {}, r':4: found no text in the column positive'),
    'an object': ([{'anchor': 'a', 'positive': {}}], {}, r':1, field positive: found a JSON dict'),
    'no number': ([{**SCORED, 'score': 'x'}], {}, r":1: found the score 'x'"),
    'list': ([{**SCORED, 'score': [1]}], {}, r':1: found a JSON list, .*; correct the record'),
    'no score': ([{**SCORED, 'score': None}], {}, r':1: found no score in the column score'),
    'range': ([SCORED], {'loss': 'cosine'}, r':1: found the score 5, expected -1 to 1; set config.task.max_score'),
    'loss': (PAIRS, {'loss': 'cosent'}, r"config.task.loss: found 'cosent' with .* pairs, expected one of info_nce"),
    'other negative': (
        PAIRS,
        {'negative': 'neg'},
        r"config.task.negative: found 'neg', which no record has, expected a",
    ),
    'other label': (
        PAIRS,
        {'label': 'gold'},
        r"config.task.label: found 'gold', which no record has, expected a column",
    ),
    'later scores': (
        [PAIRS[0], {**PAIRS[1], 'score': [3, 1]}],
        {},
        r':2: found scores in the column score, expected none, as in the first record',
    ),
    'option': ([SCORED], {'symmetric': True}, r'config.task.symmetric: found True with the loss cosent'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_invalid_records_and_options_are_refused(tmp_path: pathlib.Path, case: str):
    rows, options, message = REFUSED[case]
    write(tmp_path, 'train.jsonl', rows)
    embedding_task = task(tmp_path, **options)
    with pytest.raises(UserError, match=message):
        embedding_task.learn(embedding_task.records('train'))


BEIR = {'corpus.jsonl': [{'_id': 'x', 'title': '', 'text': 'a'}], 'queries.jsonl': [{'_id': 'q', 'text': 'b'}]}


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('qrels/dev.tsv', 'q\ty\t1\n', r"dev.tsv:1: found 'y', which corpus.jsonl lacks"),
        ('qrels/dev.tsv', 'query-id\tcorpus-id\tscore\nz\tx\t1\n', r"dev.tsv:2: found 'z', which queries.jsonl lacks"),
        ('qrels/dev.tsv', 'q\tx\t0.5\n', r"dev.tsv:1: found the score '0.5', expected an integer"),
        ('qrels/dev.tsv', 'q\tx\t²\n', r"dev.tsv:1: found the score '²', expected an integer"),
        ('qrels/dev.tsv', 'q\tx\t0\n', r'dev.tsv: found no relevant document'),
        ('corpus.jsonl', '{"_id": "x y", "text": "a"}\n', r"corpus.jsonl:1: found the _id 'x y', expected a name"),
        ('corpus.jsonl', '{"_id": "x"}\n', r"corpus.jsonl:1: found the fields '_id', expected text"),
        (
            'queries.jsonl',
            '{"_id": "q", "text": "a"}\n{"_id": "q", "text": "a"}\n',
            r"queries.jsonl:2: found the _id 'q'",
        ),
    ],
)
def test_an_invalid_beir_folder_is_refused(tmp_path: pathlib.Path, name: str, content: str, message: str):
    for file, rows in BEIR.items():
        write(tmp_path, file, rows)
    (tmp_path / 'qrels').mkdir()
    (tmp_path / 'qrels' / 'dev.tsv').write_text('q\tx\t1\n')
    embedding_task = task(tmp_path)
    assert embedding_task.splits() == ['dev'] and embedding_task.records('dev')[0].relevant == {0: 1}
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        embedding_task.records('dev')


def test_a_name_of_a_split_is_not_used_for_a_beir_folder(tmp_path: pathlib.Path, capsys):
    write(tmp_path, 'corpus.jsonl', BEIR['corpus.jsonl'])
    write(tmp_path, 'train.jsonl', PAIRS)
    assert len(task(tmp_path).records('train')) == len(PAIRS)  # corpus.jsonl alone does not make a BEIR folder
    (tmp_path / 'qrels').mkdir()
    assert task(tmp_path, dev='dev.jsonl').splits() == []
    assert 'config.task.dev=dev.jsonl is not used, because the splits of a BEIR folder' in capsys.readouterr().out


def test_only_tables_have_lists_in_texts(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', [{**PAIRS[0], 'negative': '["c", "d"]'}])
    assert task(tmp_path).records('train')[0].texts[2:] == ('["c", "d"]',)
    cells = '"[""c"", ""d""]"', '[c]', '[1]'
    rows = ''.join(f'a,b,{cell}\n' for cell in cells)
    (tmp_path / 'train.jsonl').unlink()
    (tmp_path / 'train.csv').write_text(f'anchor,positive,negative\n{rows}')
    negatives = [record.texts[2:] for record in task(tmp_path).records('train')]
    assert negatives == [('c', 'd'), ('[c]',), ('[1]',)]


@pytest.mark.parametrize('cell', ["['c', 'd']", "['c' 'd']", "['c', None]", '"[""c"", ""d""]"'])
def test_lists_in_other_notations_are_refused(tmp_path: pathlib.Path, cell: str):
    """pandas writes lists in Python's notation, and JSON with quotes."""
    (tmp_path / 'train.tsv').write_text(f'anchor\tpositive\tnegative\na\tb\t{cell}\n')
    with pytest.raises(UserError, match=r'train.tsv:2: found the list .* in the column negative, expected a text, or'):
        task(tmp_path).records('train')


def test_a_renamed_column_may_be_one_of_another_split(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', PAIRS[:1])
    write(tmp_path, 'dev.jsonl', [{'text_a': 'a', 'text_b': 'b', 'gold': 5}])
    assert task(tmp_path, label='gold').records('train')[0].texts == ('a', 'b')


def test_a_file_of_an_unknown_format_is_refused(tmp_path: pathlib.Path):
    (tmp_path / 'pairs.txt').write_text('a\tb\n')
    with pytest.raises(UserError, match=r"the suffix '.txt', expected one of .*; rename it$"):
        EmbeddingTask(str(tmp_path / 'pairs.txt'), 64).records('train')


def test_a_row_to_predict_without_a_text_names_the_key(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"'anchor', 'positive', expected text_a; .* in config.task.text_a"):
        next(task(tmp_path).from_rows(iter([Record('in:1', PAIRS[0])])))


def test_a_missing_file_of_a_beir_folder_is_named(tmp_path: pathlib.Path):
    for file, rows in BEIR.items():
        write(tmp_path, file, rows)
    columns = {role: role for role in ROLES}
    mined = EmbeddingSplits(str(tmp_path), dict.fromkeys(STEMS, ''), columns, 'config.mine_negatives')
    with pytest.raises(UserError, match=r'qrels/train.tsv: found no such file'):
        mined.queries('train')
    with pytest.raises(UserError, match=r'qrels/dev.tsv: found no such file'):
        task(tmp_path).records('dev')


def test_training_pairs_are_not_evaluated(tmp_path: pathlib.Path):
    for split in ('train', 'dev'):
        write(tmp_path, f'{split}.jsonl', PAIRS)
    data = types.SimpleNamespace(task=task(tmp_path))
    with pytest.raises(UserError, match="found 'train', which is used only for training, expected dev; choose another"):
        _labeled(data, 'train')


def test_a_correlation_needs_different_scores(tmp_path: pathlib.Path):
    for scores, has_score in (((3, 3), False), ((3, 4), True)):
        write(tmp_path, 'dev.jsonl', [{'text_a': 'a', 'text_b': 'b', 'score': score} for score in scores])
        scored = task(tmp_path)
        assert scored.has_score(scored.records('dev')) is has_score


def test_single_texts_are_refused_as_the_dev_split(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', [{'text': 'a'}])
    assert task(tmp_path).splits() == []
    write(tmp_path, 'dev.jsonl', [{'text': 'a'}])
    with pytest.raises(UserError, match='found single texts as the dev split, expected pairs or scored pairs'):
        task(tmp_path).splits()


def test_options_that_the_model_cannot_support_are_refused():
    with pytest.raises(UserError, match=r'config.task.matryoshka_dims: found \(64, 8\), expected at most 32'):
        task(pathlib.Path(), matryoshka_dims=(64, 8)).build_module(
            BertConfig(vocab_size=9, num_layers=1, width=32, num_heads=2)
        )
    with pytest.raises(UserError, match=r"config.trainable: found 'head'"):
        task(pathlib.Path()).check_training('head')


def test_single_texts_need_dropout(tmp_path: pathlib.Path):
    simcse, config = task(tmp_path), BertConfig(vocab_size=9, dropout=0.0, attention_dropout=0.0)
    simcse.check_encoder(config)
    simcse.learn([TextExample('texts', ('a',))])
    with pytest.raises(UserError, match=r'config.model.dropout: found 0 with single texts, expected dropout'):
        simcse.check_encoder(config)
    simcse.check_encoder(dataclasses.replace(config, attention_dropout=0.1))


@pytest.mark.parametrize(('scores', 'labeled'), [((-1.0, -1.0), False), ((-1.0, 0.5), True)])
def test_a_test_split_with_only_the_score_minus_one_is_unlabeled(tmp_path: pathlib.Path, scores, labeled: bool):
    rows = [{**SCORED, 'score': score} for score in scores]
    (tmp_path / 'test.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    embedding_task = task(tmp_path)
    assert embedding_task.splits() == ['test'] * labeled
    assert [record.score for record in embedding_task.records('test')] == (list(scores) if labeled else [None, None])
