"""Rerankers: losses and gradients against torch, features, rankings, and what is refused with file and line."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.convert.huggingface.cross_encoder import ACTIVATIONS, CrossEncoder, cross_encoder_files, read_cross_encoder
from bertjax.errors import UserError
from bertjax.metrics.retrieval import retrieval_figures
from bertjax.tasks.embedding.files import Corpus, Query, TextExample
from bertjax.tasks.reranking.task import LOSSES, RerankTask
from bertjax.text.tokenizer import Tokenizer

LISTS = [
    {'anchor': 'a', 'positive': 'b', 'negative': 'c'},
    {'anchor': 'd e', 'positive': 'a b c d e', 'negative': ['f', 'a']},
]
B, M = 4, 3
PRESENT = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]])  # the last row is padding


def write(folder: pathlib.Path, name: str, rows: list[dict]) -> None:
    (folder / name).write_text(''.join(json.dumps(row) + '\n' for row in rows))


def task(folder: pathlib.Path, **options) -> RerankTask:
    return RerankTask(str(folder), options.pop('seq_len', 8), **options)


@pytest.mark.parametrize(
    'loss, pairs', sorted({(name, form == 'scored') for name in LOSSES for form in LOSSES[name].forms})
)
def test_value_and_gradient(loss: str, pairs: bool):
    """torch computes the same loss of each row alone; only real rows and texts count."""
    torch = pytest.importorskip('torch', reason='computes the losses')
    draw, shape = np.random.default_rng(0), (B,) if pairs else (B, M)
    logits, labels = draw.standard_normal(shape).astype(np.float32), draw.random(shape, np.float32)
    logits_of_theirs, total = torch.tensor(logits, requires_grad=True), torch.tensor(0.0)
    F = torch.nn.functional
    for row, target, present in zip(logits_of_theirs[:3], torch.tensor(labels), PRESENT, strict=False):
        x, y = (row, target) if pairs else (row[present > 0], target[present > 0])
        if loss == 'bce':
            total = total + F.binary_cross_entropy_with_logits(x, y)
        elif loss == 'mse':
            total = total + F.mse_loss(x, y)
        elif loss == 'softmax':
            total = total + F.cross_entropy(x, torch.tensor(0))
        else:
            total = total + F.mse_loss(x[0] - x[1:], y[0] - y[1:])
    (total / 3).backward()
    mask = (PRESENT[:, 0] if pairs else PRESENT)[..., None]
    batch = {'labels': labels, 'weights': np.float32([1, 1, 1, 0]), 'attention_mask': mask}
    objective = RerankTask('', 32, loss=loss).objective

    def mean(x: jax.Array) -> jax.Array:
        value, weight = objective.losses({'logits': x}, batch)['loss']
        return value / weight

    value, gradient = jax.jit(jax.value_and_grad(mean))(logits)
    assert float(value) == pytest.approx(float(total.detach()) / 3, rel=2e-6)
    np.testing.assert_allclose(gradient, logits_of_theirs.grad, atol=1e-6)
    assert objective.weights(batch) == {'loss': 3}
    distill = jax.jit(objective.distill_loss.elements)
    distilled = distill({'logits': logits}, {'logits': labels}, batch, 1.0)
    np.testing.assert_allclose(distilled, jax.jit(LOSSES['mse'].rows)(logits, batch))


def test_pairs_of_a_list_are_sequences_of_a_row(tmp_path: pathlib.Path, tokenizer: Tokenizer):
    write(tmp_path, 'train.jsonl', LISTS)
    one = task(tmp_path)
    features = one.features(one.records('train'), tokenizer, training=True)
    assert features.choices == 3 and features.sequence_lengths.tolist() == [5, 5, 0, 8, 6, 6]
    assert features.notes == ('1 of 5 pairs are longer than config.seq_len=8 and lose their end',)
    pieces = [''.join(tokenizer.pieces[i] for i in x) for x in np.split(features.tokens, features.offsets[1:-1])]
    assert pieces == ['[CLS]a[SEP]b[SEP]', '[CLS]a[SEP]c[SEP]', '', '[CLS]de[SEP]abc[SEP]', *pieces[4:]]
    batch = features.batch(np.array([0]), 8, tokenizer.pad_id)
    assert batch['segment_ids'][0, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0] and 'labels' not in batch
    # Evaluation has a row for each pair, and a teacher's scores are labels.
    write(tmp_path, 'dev.jsonl', LISTS)
    queries = one.records('dev')
    assert one.score == 'ndcg_10' and [query.candidates for query in queries] == [(0, 1), (2, 3, 4)]
    assert len(one.features(queries, tokenizer, training=False)) == 5
    write(tmp_path, 'train.jsonl', [{**LISTS[0], 'score': [3, 1]}, {**LISTS[1], 'score': [2.0, 0, -1]}])
    distilled = task(tmp_path, max_score=2)
    records = distilled.records('train')
    distilled.learn(records)
    labels = distilled.features(records, tokenizer, training=True).row['labels']
    np.testing.assert_array_equal(labels, [[1.5, 0.5, 0], [1, 0, -0.5]])


@pytest.mark.parametrize(('loss', 'expected'), [('mse', [0, 4]), ('softmax', [0, 0]), ('margin_mse', [0, 0])])
def test_losses_of_lists_of_a_single_text(tmp_path: pathlib.Path, tokenizer: Tokenizer, loss: str, expected: list):
    write(tmp_path, 'train.jsonl', [{'anchor': 'a', 'positive': 'b', 'score': [score]} for score in (7.0, 5.0)])
    one = task(tmp_path, loss='mse')
    records = one.records('train')
    one.learn(records)
    batch = one.features(records, tokenizer, training=True).batch(np.arange(2), 8, tokenizer.pad_id)
    assert batch['labels'].shape == (2, 1)
    np.testing.assert_array_equal(LOSSES[loss].rows(jnp.array([7.0, 3.0]), batch), expected)


def test_rankings_and_their_figures(tmp_path: pathlib.Path):
    """Equal scores are in descending order of the ids, so that a model without an opinion is not praised."""
    corpus = Corpus(['d0', 'd1', 'd2'], ['x', 'y', 'z'])
    queries = [Query('q0', 'a', {0: 1}, corpus, (0, 1, 2)), Query('q1', 'b', {2: 1}, corpus, (1, 2))]
    one = task(tmp_path)
    found = one.predictions(queries, None, {'logits': np.array([0.5, 0.5, -1, 0, 3], np.float32)})
    assert [list(ranking.documents) for ranking in found] == [[1, 0, 2], [2, 1]]
    figures = retrieval_figures([[1, 0, 2], [2, 1]], [query.relevant for query in queries])
    assert one.metrics(queries, found) == {name: figures[name] for name in ('ndcg_10', 'mrr_10')}
    assert not one.collapsed(queries, found) and one.metrics(queries, found)['mrr_10'] == 0.75


def test_an_ensemble_scores_by_the_mean_logit(tmp_path: pathlib.Path):
    one, pairs = task(tmp_path, activation='sigmoid'), [TextExample('scored', ('a', 'b'), 1.0)] * 2
    members = [(None, {'logits': np.float32(logits)}) for logits in ([1, -3], [2, 0])]
    np.testing.assert_allclose(one.ensemble_predictions(pairs, members), 1 / (1 + np.exp([-1.5, 1.5])))


PAIR = {'text_a': 'a', 'text_b': 'b', 'score': 1}
REFUSED = {
    'no negatives': ([{'anchor': 'a', 'positive': 'b'}], {}, 'found only anchors without negatives'),
    'range': ([{**PAIR, 'score': 5}], {}, r':1: found the score 5, expected 0 to 1; set config.task.max_score'),
    'negative score': ([{**PAIR, 'score': -1}], {}, r':1: found the score -1, expected 0 to 1'),
    'loss': ([PAIR], {'loss': 'softmax'}, "found 'softmax' with records of the form scored, expected one of bce, mse"),
    'texts': ([{'text': 'a'}], {}, 'form texts, expected the columns anchor and positive, or text_a and text_b; train'),
    'count': ([{**LISTS[0], 'score': [1]}], {}, r':1: found the scores \[1\], expected a list of 2 numbers'),
    'no list': ([{**LISTS[0], 'score': 0.5}], {}, r':1: found the scores 0.5, expected a list of 2 numbers'),
    'no number': ([{**LISTS[0], 'score': [1, 'x']}], {}, r":1: found the score 'x', expected a finite number"),
}


@pytest.mark.parametrize('case', REFUSED)
def test_invalid_records_and_options_are_refused(tmp_path: pathlib.Path, case: str):
    rows, options, message = REFUSED[case]
    write(tmp_path, 'train.jsonl', rows)
    one = task(tmp_path, **options)
    with pytest.raises(UserError, match=message):
        one.learn(one.records('train'))


def test_lists_without_negatives_are_not_evaluated(tmp_path: pathlib.Path):
    write(tmp_path, 'dev.jsonl', [{'anchor': 'a', 'positive': 'b'}])
    with pytest.raises(UserError, match="found no negative of the anchor 'a'"):
        task(tmp_path).records('dev')


def test_negatives_of_squad_come_from_mining(tmp_path: pathlib.Path):
    question = {'id': '1', 'question': 'a', 'answers': [{'text': 'b', 'answer_start': 0}]}
    squad = {'version': '1.1', 'data': [{'paragraphs': [{'context': 'b', 'qas': [question]}]}]}
    for name in ('train', 'dev'):
        (tmp_path / f'{name}-v1.1.json').write_text(json.dumps(squad))
    one = task(tmp_path)
    fix = r'; name their column in config\.task\.negative, '
    fix += r'or find negatives with configs/mine_negatives\.py, and give its result as config\.data'
    with pytest.raises(UserError, match='found only anchors without negatives, expected negatives' + fix):
        one.learn(one.records('train'))
    with pytest.raises(UserError, match="found no negative of the anchor 'a', expected a negative" + fix):
        one.records('dev')


def test_an_anchor_may_lack_negatives(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    write(tmp_path, 'train.jsonl', [*LISTS, {'anchor': 'a', 'positive': 'b', 'negative': []}])
    one = task(tmp_path)
    one.learn(one.records('train'))
    assert f'1 of {len(LISTS) + 1} anchors have no negatives' in capsys.readouterr().out


def test_the_first_documents_of_a_search_are_ranked_again(tmp_path: pathlib.Path, tokenizer: Tokenizer):
    corpus = [{'_id': f'c{i}', 'text': text} for i, text in enumerate('abcd')]
    write(tmp_path, 'corpus.jsonl', [*corpus, {'_id': 'q', 'text': 'e'}])
    write(tmp_path, 'queries.jsonl', [{'_id': 'q', 'text': 'e'}])
    for folder in ('qrels', 'run/test'):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / 'qrels' / 'test.tsv').write_text('q\tc1\t1\nq\tc0\t1\n')
    run = tmp_path / 'run' / 'test' / 'test.trec'
    scores = ((3, 0.1), (1, 0.5), (2, 0.6), (3, 0.9), (0, 0.5))  # c1 before c0, and c3's first score, as in the file
    itself = 'q Q0 q 1 0.9 x\n'  # as in the runs of some other programs
    run.write_text(itself + ''.join(f'q Q0 c{i} 1 {score} x\n' for i, score in scores))
    (query,) = task(tmp_path, candidates=str(tmp_path / 'run'), candidate_count=2).records('test')
    assert query.candidates == (2, 1) and query.relevant == {0: 1, 1: 1}
    (ranking,) = task(tmp_path).predictions([query], None, {'logits': np.float32([1, 2])})
    assert list(ranking.documents) == [1, 2]  # nDCG and recall count what the search missed
    # A search of a sample lacks the other queries.
    write(tmp_path, 'queries.jsonl', [{'_id': name, 'text': 'e'} for name in ('q', 'r')])
    (tmp_path / 'qrels' / 'test.tsv').write_text('q\tc1\t1\nr\tc0\t1\n')
    one = task(tmp_path, candidates=str(tmp_path / 'run'))
    queries = one.records('test')
    assert len(one.features(queries[:1], tokenizer, training=False)) == 4
    with pytest.raises(UserError, match=r'candidates: found no document, except perhaps .* for the query r, expected'):
        one.features(queries, tokenizer, training=False)
    with pytest.raises(UserError, match="candidates: found '', expected a folder with the run of a search"):
        task(tmp_path).records('test')
    for line in ('q Q0 c9 1 0.5 x\n', 'q Q0 c1 1 high x\n', 'q Q0 c1 1 nan x\n', 'q c1 0.5\n'):
        run.write_text(line)
        with pytest.raises(UserError, match=r'test.trec:1: found .* expected query, Q0, a document of the corpus'):
            task(tmp_path, candidates=str(tmp_path / 'run')).records('test')
    write(tmp_path, 'dev.jsonl', LISTS)
    (tmp_path / 'corpus.jsonl').unlink()
    with pytest.raises(UserError, match="candidates: found 'x', expected '', because the file has the texts"):
        task(tmp_path, candidates='x').records('dev')


def test_settings_of_a_cross_encoder(tmp_path: pathlib.Path):
    def write_json(name: str, **values) -> None:
        (tmp_path / name).write_text(json.dumps(values))

    write_json('config.json', id2label={'0': 'LABEL_0'})
    assert read_cross_encoder(tmp_path) is None
    for activation in ACTIVATIONS:
        settings = CrossEncoder(16, activation)
        for name, content in cross_encoder_files(settings).items():
            (tmp_path / name).write_bytes(content)
        assert read_cross_encoder(tmp_path) == settings
    three = {str(i): str(i) for i in range(3)}
    write_json('config.json', id2label=three)
    assert read_cross_encoder(tmp_path) is None  # three labels are a classification
    name = 'config_sentence_transformers.json'
    write_json('config.json', id2label=5)
    write_json(name, model_type='CrossEncoder')
    assert read_cross_encoder(tmp_path) is None  # the reader of the classification reports the wrong id2label
    write_json('config.json', id2label={'0': 'LABEL_0'}, sentence_transformers={'activation_fn': 'torch.x.Identity'})
    write_json(name)
    assert read_cross_encoder(tmp_path).activation == 'identity'  # as versions 4 and 5 write it
    for wrong, message in (
        ({'activation_fn': 'torch.nn.modules.activation.Tanh'}, 'found the activation .*Tanh'),
        ({'default_prompt_name': 'q'}, 'found a default prompt'),
    ):
        write_json(name, model_type='CrossEncoder', **wrong)
        with pytest.raises(UserError, match=message):
            read_cross_encoder(tmp_path)
