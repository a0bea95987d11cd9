"""`bertjax.load`: a model in a Python program, from a workdir, a checkpoint or an export."""

import inspect
import json
import math
import pathlib
import pickle
import shutil
import subprocess
import sys
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import GLUE, Program, rows
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.convert.load import read_config
from bertjax.errors import UserError
from bertjax.finetune.task_data import make_task_json
from bertjax.inference.masked_methods import Filling, JointFilling, Score
from bertjax.inference.task_methods import ChoiceAnswer, TaggedWords
from bertjax.tasks.registry import options_with_kind
from bertjax.tasks.relation.task import RelationTask
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.task import TextTask

TEXTS = ['the river runs', 'a bird sings over the old house', 'stone']


@pytest.fixture(scope='module')
def bert(trained: pathlib.Path) -> bertjax.Bert:
    return bertjax.load(trained, dropout=np.float64(0.1), batch_size=np.int64(64), max_length=jnp.array(0))


def test_the_import_does_not_start_jax():
    """Workers that build a corpus import the package without JAX; loading a model does not import Orbax."""
    program = 'import sys, bertjax; assert "jax" not in sys.modules; assert "load" in dir(bertjax); bertjax.load\n'
    program += 'assert not {"orbax.checkpoint", "tensorflow_datasets", "transformers", "torch"} & {*sys.modules}'
    subprocess.run([sys.executable, '-c', program], check=True)


@pytest.mark.slow
def test_features_of_a_text_do_not_depend_on_other_texts(bert):
    many = bert.encode(TEXTS)
    assert many.shape == (3, 32) and many.dtype == np.float32
    for text, row in zip(TEXTS, many, strict=True):
        np.testing.assert_allclose(bert.encode(text), row, atol=1e-5)
    assert bert.encode([]).shape == (0, 32)
    # Many short texts share rows with other texts.
    crowd = [TEXTS[i % 3] + ' and a stone' * (i % 4) for i in range(150)]
    first = bert.encode(crowd[:3])
    np.testing.assert_allclose(bert.encode(crowd)[:3], first, atol=1e-5)
    assert max(count for _, _, count in bert._runner._predictors) > 1
    np.testing.assert_allclose(np.linalg.norm(bert.encode(TEXTS, normalize=np.True_), axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_layers_and_pooling_select_the_right_vectors(bert):
    tokens = bert.encode(TEXTS, pool=None)
    assert [len(row) for row in bert.encode(TEXTS, pool='none')] == [len(row) for row in tokens]
    assert [len(row) for row in tokens] == [len(pieces) for pieces in bert.pieces(TEXTS)]
    np.testing.assert_allclose(bert.encode(TEXTS), np.stack([row.mean(0) for row in tokens]), atol=1e-5)
    np.testing.assert_allclose(bert.encode(TEXTS, pool='cls'), np.stack([row[0] for row in tokens]), atol=1e-6)
    first, last = bert.encode(TEXTS[0], layers=0, pool=None), bert.encode(TEXTS[0], layers=2, pool=None)
    np.testing.assert_allclose(last, tokens[0], atol=1e-6)
    both = bert.encode(TEXTS[0], layers=[0, -1], pool=None, combine='concat')
    np.testing.assert_allclose(both, np.concatenate([first, last], axis=-1), atol=1e-6)
    mixed = bert.encode(TEXTS[0], layers=[0, -1], pool=None, combine='weighted', weights=[0.25, 2])
    np.testing.assert_allclose(mixed, 0.25 * first + 2 * last, atol=1e-5)
    assert bert.encode(TEXTS, pool='pooler').shape == (3, 32)
    for wrong in ({'layers': 3}, {'layers': ()}, {'combine': 'max'}, {'weights': [1.0]}, {'pool': 'last'}):
        for texts in (TEXTS, []):
            with pytest.raises(UserError):
                bert.encode(texts, **wrong)


@pytest.mark.slow
def test_apply_is_a_pure_function_for_custom_loops(bert):
    batch = bert.batch(TEXTS, ['it falls'] * 3)
    assert {name: x.shape for name, x in batch.items()} == dict.fromkeys(batch, (3, 16))
    apply = jax.jit(bert.apply)
    outputs = apply(bert.params, batch)
    assert outputs['hidden'].shape == (3, 16, 32) and outputs['nsp_logits'].shape == (3, 2)
    masked = apply(bert.params, {**batch, 'masked_positions': np.ones((3, 2), np.int32)})
    assert masked['mlm_logits'].shape == (3, 2, bert.tokenizer.vocab_size)
    dropped = apply(bert.params, batch, rngs={'dropout': jax.random.key(0)})
    assert np.abs(dropped['hidden'] - outputs['hidden']).max() > 0.01

    def loss(params):
        return jnp.square(bert.apply(params, batch)['pooled']).sum()

    gradients = jax.jit(jax.grad(loss))(bert.params)
    assert jax.tree.structure(gradients) == jax.tree.structure(bert.params)


def test_with_params_replaces_the_parameters_in_a_copy(bert):
    changed = jax.device_put(jax.tree.map(lambda x: x * 1.1, bert.params), jax.devices()[1])
    other, before = bert.with_params(changed), bert.encode(TEXTS)
    assert np.abs(other.encode(TEXTS) - before).max() > 1e-3
    np.testing.assert_array_equal(bert.encode(TEXTS), before)
    on_host = bert.with_params(jax.device_get(bert.params))  # placed once, not for each batch
    assert jax.tree.map(lambda x: x.sharding, on_host.params) == jax.tree.map(lambda x: x.sharding, bert.params)
    pooler, path = changed['pooler'], 'params, pooler/bias: found'
    for wrong, message in (
        (changed['encoder'], r'params, encoder/\S+: found nothing, expected float \[.*; pass a tree'),
        (changed | {'pooler': {**pooler, 'bias': np.zeros(3)}}, rf'{path} float \[3\], expected float \[32\]'),
        (changed | {'pooler': {**pooler, 'bias': np.zeros(32, np.int32)}}, rf'{path} int32 \[32\], expected float \['),
        (changed | {'other': np.zeros(3)}, r'params, other: found float \[3\], expected nothing'),
        (None, r'params, \S+: found nothing'),
        (jax.eval_shape(lambda: changed), r'params, \S+: found a ShapeDtypeStruct, expected float \['),
    ):
        with pytest.raises(UserError, match=f'^{message}'):
            bert.with_params(wrong)


def test_repr_describes_the_model(bert, trained):
    text = repr(bert)
    for part in (str(trained), '2 layers, width 32', 'wordpiece, 96 pieces, uncased', 'masked words', 'sentence pairs'):
        assert part in text, text


@pytest.mark.slow
def test_checkpoints_of_a_run_can_be_loaded(trained):
    """The last checkpoint has the weights of the export; an earlier one has others."""
    finished, last, earlier = (
        bertjax.load(trained, step=step).encode(TEXTS) for step in (0, np.int64(24), np.array(20))
    )
    np.testing.assert_allclose(last, finished, atol=1e-6)
    assert np.abs(earlier - finished).max() > 1e-4
    with pytest.raises(UserError, match=r'^step: found 7, .* no undamaged checkpoint of this step'):
        bertjax.load(trained, step=7)
    with pytest.raises(UserError, match=r'^step: found 7, but .* has no checkpoints'):
        bertjax.load(trained / 'export' / 'hf', step=7)


@pytest.mark.slow
def test_an_empty_text_is_accepted(bert):
    assert bert.pieces('') == ['[CLS]', '[SEP]'] and bert.spans('').tolist() == [[-1, -1]] * 2
    np.testing.assert_allclose(bert.encode(''), bert.encode(['', 'a'])[0], atol=1e-5)
    assert bert.attention('').weights.shape == (2, 2, 2, 2)
    assert bert.next_sentence('', 'a') == pytest.approx(bert.next_sentence(['', 'a'], ['a', ''])[0], abs=1e-5)
    assert bert.pieces([]) == bert.spans([]) == []
    with pytest.raises(UserError, match='at least one'):
        bert.batch([])


def variant(trained: pathlib.Path, folder: pathlib.Path, names: str, changes: dict, **config) -> pathlib.Path:
    """Copies the export without the tensors that start with `names`, and adds the tensors `changes` and `config`."""
    shutil.copytree(trained / 'export' / 'hf', folder)
    tensors = {name: x for name, x in load_file(folder / 'model.safetensors').items() if not name.startswith(names)}
    save_file(tensors | changes, folder / 'model.safetensors')
    facts = json.loads((folder / 'config.json').read_text()) | config
    (folder / 'config.json').write_text(json.dumps(facts))
    return folder


@pytest.mark.slow
def test_a_head_from_with_params_is_not_missing(bert, trained, tmp_path):
    without = bertjax.load(variant(trained, tmp_path / 'x', 'cls.', {}, architectures=['BertModel']))
    with pytest.raises(UserError, match='no head for masked words'):
        without.fill('a [MASK]')
    decayed = without.with_params(jax.tree.map(lambda x: x * 0.99, without.params))
    with pytest.raises(UserError, match='no head for masked words'):
        decayed.fill('a [MASK]')
    trained_on = decayed.with_params(bert.params)
    assert trained_on.fill('a [MASK]') == bert.fill('a [MASK]') and not trained_on.missing and without.missing


@pytest.mark.slow
def test_padding_rows_of_the_embedding_are_never_predicted(bert, trained, tmp_path):
    """Some checkpoints pad the vocabulary to a multiple of 64."""
    name, size = 'bert.embeddings.word_embeddings.weight', bert.tokenizer.vocab_size
    rows, bias = (load_file(trained / 'export' / 'hf' / 'model.safetensors')[n] for n in (name, 'cls.predictions.bias'))
    more = {name: np.concatenate([rows, rows[:32]]), 'cls.predictions.bias': np.concatenate([bias, 9 + bias[:32]])}
    padded = bertjax.load(variant(trained, tmp_path / 'x', 'cls.predictions.decoder', more, vocab_size=size + 32))
    fillings = padded.fill('a [MASK]', top_k=1000)
    assert len(fillings) == size and {filling['token'] for filling in fillings} == {*bert.tokenizer.pieces}
    assert padded.extend('a', tokens=3, temperature=0).startswith('a')


def test_wrong_heads_and_wrong_inputs_are_errors(tuned, trained, tmp_path):
    weights = {f'classifier.{name}': np.zeros(shape, np.float32) for name, shape in (('weight', (3, 32)), ('bias', 3))}
    facts = {'architectures': ['BertForTokenClassification'], 'id2label': {'0': 'O', '1': 'B-X', '2': 'I-X'}}
    tagger = bertjax.load(variant(trained, tmp_path / 'ner', 'cls.', weights, **facts))
    config = json.loads((tmp_path / 'ner' / 'config.json').read_text())
    for wrong in ({'num_labels': 10**12}, {'num_labels': 1e400}, {'id2label': {'0': 'O', str(10**30): 'B-X'}}):
        (tmp_path / 'ner' / 'config.json').write_text(json.dumps(config | wrong))
        with pytest.raises(UserError, match=rf'config\.json: found {next(iter(wrong))}'):
            bertjax.load(tmp_path / 'ner')
    assert tagger.tag('')['tags'] == () and tagger.tag([[]])[0]['entities'] == []
    assert [len(row['tags']) for row in tagger.tag(['', 'a bird', ''])] == [0, 2, 0]
    assert tagger.tag([np.array(['a', 'bird']), np.array([])]) == tagger.tag([['a', 'bird'], []])
    weights = {'classifier.weight': np.ones((1, 32), np.float32), 'classifier.bias': np.zeros(1, np.float32)}
    facts = {'architectures': ['BertForMultipleChoice']}
    chooser = bertjax.load(variant(trained, tmp_path / 'choice', 'cls.', weights, **facts))
    assert chooser.choose('a', ['bird', 'stone'])['ending'] in ('bird', 'stone') and chooser.choose([], []) == []
    batch = chooser.batch(['a', 'the'], [['bird', 'stone'], ['wind', 'house', 'old field']])
    assert batch['input_ids'].shape == (2, 3, 8) and chooser.apply(chooser.params, batch)['logits'].shape == (2, 3)
    with pytest.raises(UserError, match='the endings of each text'):
        chooser.batch('a')
    assert chooser.choose('a', ['bird', 'stone']).keys() == ChoiceAnswer.__annotations__.keys()
    assert tagger.tag('a bird').keys() == TaggedWords.__annotations__.keys()
    for endings in (None, 3, [['bird', 3]], [3, 'bird']):
        with pytest.raises(UserError, match=r'^endings'):
            chooser.choose(['a'], endings)
    for sentences in (3, [3], [['a', 3]], {'a': 'bird'}):
        with pytest.raises(UserError, match=r'^sentences'):
            tagger.tag(sentences)
    for endings in (['bird'], [], 'ab'):
        with pytest.raises(UserError, match='at least two'):
            chooser.choose('a', endings)
    for call in (
        lambda: chooser.choose(['a', 'the'], [['bird', 'stone']]),
        lambda: bertjax.load(tuned).classify(['a', 'b'], ['c']),
    ):
        with pytest.raises(UserError, match='expected one for each text'):
            call()


def with_task(trained: pathlib.Path, folder: pathlib.Path, task: TextTask) -> bertjax.Bert:
    """Loads the export with a random head for two labels, and with the task."""
    weights = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    tensors = {'classifier.weight': weights, 'classifier.bias': np.zeros(2, np.float32)}
    path = variant(trained, folder, 'cls.', tensors, architectures=['BertForSequenceClassification'])
    text = make_task_json(options_with_kind(task), task, read_config(str(path)), task.seq_len)
    (path / 'task.json').write_text(text)
    return bertjax.load(path)


def check_batch(model: bertjax.Bert, texts: list[str]) -> None:
    """Compares the logits of `apply` and `batch` with the probabilities of `classify`."""
    logits = model.apply(model.params, model.batch(texts))['logits']
    expected = [list(answer['probabilities'].values()) for answer in model.classify(texts)]
    np.testing.assert_allclose(jax.nn.softmax(logits), expected, rtol=1e-5)


def test_a_batch_of_a_relation_model_has_its_own_marks(trained, tmp_path):
    model = with_task(trained, tmp_path / 'x', RelationTask('', 24, labels=('no_relation', 'near')))
    check_batch(model, ['the << bird >> runs near a [[ house ]]'])
    with pytest.raises(UserError, match='no entity between << and >>'):
        model.batch('the bird')


@pytest.mark.parametrize('long', ['truncate', 'head_tail', 'windows'])
def test_a_batch_has_the_rows_of_classify(trained, tmp_path, long):
    task = ClassificationTask('', 8, long=long, labels=('no', 'yes'))
    task.trained_texts = 1
    model, text = with_task(trained, tmp_path / 'x', task), 'the river runs under the old house near a green field'
    if long == 'windows':
        check_batch(model, ['stone', 'the bird'])
        with pytest.raises(UserError, match=r'^texts\[1\]: found a text of \d+ windows, expected .* 8 tokens; split'):
            model.batch(['stone', text])
    else:
        check_batch(model, ['stone', text])
    with pytest.raises(UserError, match='found pairs, expected single texts'):
        model.batch('a', 'the')


@pytest.mark.slow
def test_a_model_can_be_pickled(bert):
    """The pickle includes the current parameters, which are placed on the devices of the reader."""
    others = bert.with_params(jax.tree.map(np.zeros_like, jax.device_get(bert.params)))
    again = pickle.loads(pickle.dumps(others))
    assert again.config == bert.config and again.config.dropout == 0.1 and not again.missing
    assert not any(np.any(x) for x in jax.tree.leaves(again.params))
    assert not again.encode(TEXTS[0]).any()


@pytest.mark.slow
def test_answers_have_the_documented_keys(bert):
    assert bert.fill('a [MASK]')[0].keys() == Filling.__annotations__.keys()
    assert bert.fill('a [MASK]', jointly=True).keys() == JointFilling.__annotations__.keys()
    assert bert.score('a').keys() == Score.__annotations__.keys()
    named = [name for name, x in vars(bertjax.Bert).items() if not name.startswith('_') and inspect.isfunction(x)]
    named += ['fill', 'score', 'next_sentence', 'extend', 'classify', 'answer', 'tag', 'choose']
    for name in {*named} - {'with_params', 'batch', 'save'}:
        assert len(typing.get_overloads(getattr(bertjax.Bert, name))) >= 2, (
            name
        )  # one for a text, one for several texts


def test_a_tuned_model_classifies(tuned: pathlib.Path):
    """The export and the checkpoint give the same answers."""
    bert = bertjax.load(tuned)
    answers = bert.classify(['river stone bird', 'sings falls house'], ['the light', 'the light'])
    assert [answer['label'] for answer in answers] == ['entailment', 'not_entailment']
    assert sum(answers[0]['probabilities'].values()) == pytest.approx(1)
    again = bertjax.load(tuned, step=72).classify('river stone bird', 'the light')
    assert again['probabilities']['entailment'] == pytest.approx(answers[0]['probabilities']['entailment'], abs=1e-5)
    assert 'labels of texts' in repr(bert) and 'entailment, not_entailment' in repr(bert)
    with pytest.raises(UserError, match='pairs, as in RTE'):
        bert.classify('river stone bird')
    with pytest.raises(UserError, match='use its method classify'):
        bert.tag('river')


@pytest.mark.slow
def test_a_long_text_is_truncated_as_by_predict(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The limit is the length of the training, for the export and the checkpoint, unless max_length sets another."""
    long = ('river stone old ' * 3 + 'sings falls house wind ' * 10).strip()
    assert len(bertjax.load(tuned).pieces(long, 'the light')) > 24
    workdir = shutil.copytree(tuned, tmp_path / 'own')
    (tmp_path / 'in.txt').write_text(f'{long}\tthe light\n')
    program.run(f'--workdir={workdir}', '--config.run=predict', f'--config.input={tmp_path / "in.txt"}', **GLUE)
    (row,) = rows(workdir / 'predictions' / 'input' / 'in.jsonl')

    def entailed(**options) -> float:
        bert = bertjax.load(workdir, **options)
        answer = bert.classify(long, 'the light')
        assert list(answer['probabilities']) == ['entailment', 'not_entailment']
        return score(answer['probabilities'])

    def score(probabilities) -> float:  # a logit: the probabilities themselves are all near 0 or 1
        return math.log(probabilities['entailment'] / probabilities['not_entailment'])

    expected = pytest.approx(score(row['probabilities']), abs=1e-4)
    assert entailed() == entailed(max_length=24) == expected
    assert entailed(step=72) == expected  # its layers are unrolled and round differently
    assert entailed(max_length=8) != expected
    bertjax.load(workdir, step=72, max_length=8).save(tmp_path / 'saved')  # the length of the training
    assert json.loads((tmp_path / 'saved' / 'tokenizer_config.json').read_text())['model_max_length'] == 24
    task = workdir / 'export' / 'hf' / 'task.json'
    facts = json.loads(task.read_text())
    assert facts['seq_len'] == 24
    task.write_text(json.dumps({**facts, 'seq_len': 'long'}))
    with pytest.raises(UserError, match=r'task\.json: seq_len'):
        bertjax.load(workdir)
