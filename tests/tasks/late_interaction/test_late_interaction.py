"""Late interaction: MaxSim, its losses and gradients against torch, exact search, tokens, and settings of a folder."""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import slow
from safetensors.numpy import save_file

from bertjax.convert.huggingface.multi_vector import (
    PUNCTUATION,
    MultiVector,
    multi_vector_files,
    read_multi_vector,
    read_projection,
    settings_as_options,
)
from bertjax.errors import UserError
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.select import choose_attention
from bertjax.model.config import BertConfig
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.late_interaction import max_sim as module
from bertjax.tasks.late_interaction.max_sim import LOSSES, ROLES, build_objective, max_sim, search
from bertjax.tasks.late_interaction.task import LateInteractionTask, Tokenization
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.exports import check_formats

B, C, S, D, Q = 4, 3, 5, 6, 3
# Row 1 has the positive of row 0; row 2 lacks a negative; row 3 is padding.
IDS = np.array([[1, 2, 3], [4, 2, 5], [6, 7, 0], [0, 0, 0]], np.int32)
SETTINGS = MultiVector('[unused0] ', '[unused1] ', 8, 7, True, False, PUNCTUATION)


def drawn_vectors() -> np.ndarray:
    """Returns unit vectors [B, C, S, D] for texts of several lengths. The vectors of absent tokens are 0."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((B, C, S, D))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    lengths = draw.integers(2, S + 1, (B, C, 1))
    lengths[:, 0] = Q
    x[np.arange(S) >= lengths] = 0
    x[IDS == 0] = 0
    return x.astype(np.float32)


def pair_score(query, document):
    """Returns the MaxSim of torch vectors by its definition. Zero vectors are ignored."""
    query, document = (x[(x != 0).any(-1)] for x in (query, document))
    return (query @ document.T).max(1).values.sum()


@pytest.mark.parametrize('loss', LOSSES)
def test_value_and_gradient(loss: str):
    torch = pytest.importorskip('torch', reason='computes the losses')
    x, labels = drawn_vectors(), np.random.default_rng(1).standard_normal((B, C - 1)).astype(np.float32)
    theirs, options = torch.tensor(x, requires_grad=True), {'scale': 2.0} if loss == 'info_nce' else {}
    F, total = torch.nn.functional, torch.tensor(0.0)
    rows = [r for r in range(B) if IDS[r, 0]]
    for r in rows:
        present = [c for c in range(1, C) if IDS[r, c]]
        own = torch.stack([pair_score(theirs[r, 0], theirs[r, c]) for c in present])
        teacher = torch.tensor(labels[r, : len(present)])
        if loss == 'info_nce':
            others = [(i, c) for i in rows for c in range(1, C) if IDS[i, c] and IDS[i, c] != IDS[r, 1]]
            logits = [own[0], *(pair_score(theirs[r, 0], theirs[text]) for text in others)]
            total = total + F.cross_entropy(2 * torch.stack(logits), torch.tensor(0))
        elif loss == 'softmax':
            total = total + F.cross_entropy(own, torch.tensor(0))
        elif loss == 'kl':
            total = total + F.kl_div(own.log_softmax(0), teacher.log_softmax(0), log_target=True, reduction='sum')
        elif len(present) > 1:
            total = total + F.mse_loss(own[:1] - own[1:], teacher[:1] - teacher[1:])
    (total / len(rows)).backward()
    objective = build_objective(loss, Q, **options)
    batch = {'text_ids': jnp.asarray(IDS), 'labels': labels, 'weights': jnp.array([1.0, 1, 1, 0])}

    def mean(x: jax.Array) -> jax.Array:
        value, weight = objective.losses({'token_vectors': x}, batch)['loss']
        return value / weight

    value, gradient = jax.jit(jax.value_and_grad(mean))(jnp.asarray(x))
    assert float(value) == pytest.approx(float(total.detach()) / len(rows), rel=1e-5)
    found, expected = (np.where(x == 0, 0, y) for y in (gradient, theirs.grad))  # absent vectors are constant
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('count', [1, 7, 100])
def test_a_search_in_blocks_equals_a_stable_sort(monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(module, 'QUERIES', 4)
    monkeypatch.setattr(module, 'DOCUMENTS', 16)
    draw = np.random.default_rng(count)
    vectors = lambda n: [draw.integers(-2, 3, (draw.integers(1, 40), 4)).astype(np.float32) for _ in range(n)]  # noqa: E731
    queries, documents = vectors(6), [*vectors(40), np.zeros((0, 4), np.float32)]
    indices, scores = search(queries, documents, count)
    products = np.array([[(q @ d.T).max(1).sum() if len(d) else 0 for d in documents] for q in queries])
    expected = np.argsort(-products, axis=1, kind='stable')[:, :count]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, expected, 1))


def test_a_document_without_tokens_has_the_score_0():
    assert float(max_sim(jnp.ones((2, 3)), jnp.zeros((4, 3)))) == 0
    gradient = jax.grad(lambda d: max_sim(jnp.ones((2, 3)), d))(jnp.zeros((4, 3)))
    assert not np.isnan(gradient).any()


@pytest.fixture
def marked(tmp_path: pathlib.Path) -> Tokenizer:
    """A tokenizer with pieces of one letter, punctuation, and two reserved pieces."""
    pieces = ['[PAD]', '[unused0]', '[unused1]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdef', ',', '.', '[', ']']
    (tmp_path / 'vocab.txt').write_text(''.join(f'{piece}\n' for piece in pieces))
    return load_tokenizer(tmp_path / 'vocab.txt')


def pieces_of(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    return ' '.join(tokenizer.pieces[i].strip('[]') or tokenizer.pieces[i] for i in ids)


def test_queries_are_augmented_and_punctuation_is_skipped(marked: Tokenizer, tokenizer: Tokenizer):
    tokens = Tokenization(marked, SETTINGS)
    (ids, arrays), (longer, longer_arrays) = tokens.queries(['a, b', 'a b c d e f'])
    assert pieces_of(marked, ids) == 'CLS unused0 a , b SEP MASK MASK' and arrays[ROLES].tolist() == [0] * 6 + [2, 2]
    assert pieces_of(marked, longer) == 'CLS unused0 a b c d e SEP' and not longer_arrays[ROLES].any()
    ((ids, arrays),) = tokens.documents(['a, b. c'])
    assert pieces_of(marked, ids) == 'CLS unused1 a , b . SEP' and arrays[ROLES].tolist() == [0, 0, 0, 1, 0, 1, 0]
    plain = MultiVector('x ', '', 8, 7, False, False, ())
    ((ids, arrays),) = Tokenization(tokenizer, plain).queries(['a'])  # a marker that is an ordinary word
    assert pieces_of(tokenizer, ids) == 'CLS x a SEP' and not arrays[ROLES].any()


@pytest.mark.parametrize('training', [True, False])
def test_texts_that_lose_their_end_are_counted(marked: Tokenizer, training: bool):
    task = LateInteractionTask('', 8, query_len=5)
    pairs = [TextExample('pairs', pair) for pair in (('a b', 'c'), ('a b c', 'a b c d e f'))]
    assert task.features(pairs, marked, training=training).notes == (
        '1 of 2 queries are longer than config.task.query_len=5 and lose their end',
        '1 of 2 documents are longer than config.seq_len=8 and lose their end',
    )


def write(folder: pathlib.Path, name: str, rows: list[dict]) -> None:
    (folder / name).write_text(''.join(json.dumps(row) + '\n' for row in rows))


def test_invalid_records_and_options_are_refused(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', [{'text_a': 'a', 'text_b': 'b', 'score': 1}])
    task = LateInteractionTask(str(tmp_path), 32)
    with pytest.raises(
        UserError, match='found records of the form scored, expected the columns anchor and positive; train'
    ):
        task.learn(task.records('train'))
    for options, message in (
        ({'query_len': 40}, r'query_len: found 40, expected at most 32'),
        ({'augment': False, 'attend': True}, 'attend: found True without augment'),
    ):
        with pytest.raises(UserError, match=message):
            LateInteractionTask('', 32, **options)


def test_queries_longer_than_the_attention_window_are_refused():
    config = BertConfig(vocab_size=9, num_layers=1, width=32, num_heads=2, attention_window=8)
    with pytest.raises(UserError, match='query_len: found 7 with an attention window of 8, expected at most 6'):
        LateInteractionTask('', 32, query_len=7).build_module(config)
    LateInteractionTask('', 32, query_len=7, attend=True).build_module(config)


def test_an_ensemble_scores_by_the_mean_cosine(marked: Tokenizer):
    task, pairs = LateInteractionTask('', 32, query_len=4), [TextExample('scored', ('a', 'b'), 1.0)]
    features, draw = task.features(pairs, marked, training=False), np.random.default_rng(0)
    query, document = (draw.standard_normal((2, n, 3)) for n in (4, 4))
    members = [(features, {'token_vectors': list(rows)}) for rows in zip(query, document, strict=True)]
    cosines = np.einsum('mqd,msd->qs', query, document) / 2
    np.testing.assert_allclose(task.ensemble_predictions(pairs, members), [cosines.max(1).sum()], rtol=1e-6)
    other = LateInteractionTask('', 32, query_len=5).features(pairs, marked, training=False)
    with pytest.raises(UserError, match=r'config.ensemble: found models that split the texts into different pieces'):
        task.ensemble_predictions(pairs, [members[0], (other, members[1][1])])


def test_unsupported_exports_and_attention_are_refused():
    config = BertConfig(vocab_size=9, num_layers=1, width=32, num_heads=2)
    task = LateInteractionTask('', 32)
    for name in ('onnx', 'stablehlo'):
        with pytest.raises(UserError, match=f'found {name} for BertForLateInteraction, .* expected hf or orbax'):
            check_formats([name], config, module=task.build_module(config), head=task.head)
    x = jnp.zeros((1, 4, 2, 16))
    mask = AttentionMask(jnp.ones((1, 4), jnp.int32), hidden_queries=True)
    for name in ('cudnn', 'flash_tpu', 'blocks_tpu'):
        with pytest.raises(UserError, match='it does not support tokens that attend but are not attended to'):
            choose_attention(name, x, x, mask, 0.0)
    assert choose_attention('auto', x, x, mask, 0.0).name in ('by_head_cpu', 'dot_product')


@pytest.mark.parametrize('window', [12, *slow(0)])
def test_rows_of_several_sequences_have_the_same_vectors(marked: Tokenizer, draw_params: Callable, window: int):
    """Augmenting masks see the tokens of their own query only, and no token sees them."""
    config = BertConfig(vocab_size=marked.vocab_size, num_layers=2, width=32, num_heads=2, attention_window=window)
    task = LateInteractionTask('', 16, query_len=8, dim=6)
    pairs = [TextExample('scored', texts, 1.0) for texts in (('a', 'b, c'), ('b c d', 'e'))]
    features = task.features(pairs, marked, training=False)
    batch = features.batch(np.arange(4), 16, marked.pad_id)
    inputs, model = [jnp.asarray(batch[name]) for name in task.objective.inputs], task.build_module(config)
    params = draw_params(lambda key: model.init(key, *inputs), stddev=0.2)
    apply = jax.jit(model.apply)
    alone = apply(params, *inputs)['token_vectors']
    packed = jax.jit(model.clone(packing=2).apply)(params, *inputs)['token_vectors']
    np.testing.assert_allclose(packed, alone, atol=1e-5)
    assert np.abs(alone[0, 4:8]).min() > 0  # the masks are compared
    other = inputs[0].at[0, 4:8].set(marked.cls_id)
    changed = apply(params, other, *inputs[1:])['token_vectors']
    np.testing.assert_allclose(changed[0, :4], alone[0, :4], atol=1e-5)
    assert np.abs(changed[0, 4:8] - alone[0, 4:8]).max() > 1e-3


def test_settings_of_a_folder(tmp_path: pathlib.Path):
    for name, content in multi_vector_files(SETTINGS, 32, 16).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert read_multi_vector(tmp_path, 64) == SETTINGS
    refused = {
        'sentence_bert_config.json': ({'query_expansion': {'strategy': 'min', 'length': 8}}, 'query_expansion .*min'),
        'config_sentence_transformers.json': (
            {'model_type': 'MultiVectorEncoder', 'similarity_fn_name': 'meanmaxsim'},
            "similarity_fn_name 'meanmaxsim'",
        ),
        '2_MultiVectorMask/config.json': ({'keep_only_token_ids': [3]}, r'keep_only_token_ids \[3\]'),
    }
    for name, (content, message) in refused.items():
        original = (tmp_path / name).read_text()
        (tmp_path / name).write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            read_multi_vector(tmp_path, 64)
        (tmp_path / name).write_text(original)
    for expansion in ('fixed', {'strategy': 'fixed'}, {'length': 8}, {'strategy': 'fixed', 'length': '8'}, []):
        (tmp_path / 'sentence_bert_config.json').write_text(json.dumps({'query_expansion': expansion}))
        with pytest.raises(UserError, match=r'sentence_bert_config.json: found (the length of )?query_expansion '):
            read_multi_vector(tmp_path, 64)
    for name, key, value in (
        ('config_sentence_transformers.json', 'prompts', ['x']),
        ('config_sentence_transformers.json', 'prompts', {'query': 3}),
        ('config_sentence_transformers.json', 'query_prefix', 3),
        ('2_MultiVectorMask/config.json', 'skiplist_words', 'the'),
        ('2_MultiVectorMask/config.json', 'skiplist_words', [1]),
    ):
        original = (tmp_path / name).read_text()
        (tmp_path / 'sentence_bert_config.json').write_text('{}')
        (tmp_path / name).write_text(json.dumps({**json.loads(original), key: value}))
        with pytest.raises(UserError, match=f"{name}: found {key}.*expected ColBERT's settings"):
            read_multi_vector(tmp_path, 64)
        (tmp_path / name).write_text(original)
    (tmp_path / 'sentence_bert_config.json').write_text(json.dumps({'document_length': '20'}))
    with pytest.raises(UserError, match=r"sentence_bert_config.json: found document_length '20'"):
        read_multi_vector(tmp_path, 64)
    (tmp_path / 'sentence_bert_config.json').write_text(json.dumps({'max_seq_length': 50, 'document_length': 20}))
    plain = read_multi_vector(tmp_path, 64)
    assert (plain.query_len, plain.document_len, plain.augment) == (50, 20, False)
    save_file({'linear.weight': np.ones((16, 32), np.float32)}, tmp_path / '1_Dense' / 'model.safetensors')
    options = settings_as_options(str(tmp_path), plain)
    task = LateInteractionTask('', **options)
    assert (task.seq_len, task.query_len, task.dim) == (20, 50, 16)
    with pytest.raises(UserError, match='query_len: found 50, expected at most 40, the positions of the encoder'):
        task.build_module(BertConfig(vocab_size=9, max_positions=40))
    # PyLate 3 has the settings in one file, and lists only the first two modules.
    (tmp_path / 'modules.json').write_text(
        json.dumps([{'type': 'sentence_transformers.models.Transformer', 'path': ''},
                    {'type': 'pylate.models.Dense.Dense', 'path': '1_Dense'}])
    )  # fmt: skip
    (tmp_path / 'sentence_bert_config.json').write_text(json.dumps({'max_seq_length': 50}))
    pylate = {'model_type': 'ColBERT', 'query_prefix': '[Q] ', 'document_prefix': '[D] ', 'query_length': 8}
    pylate |= {'document_length': 7, 'attend_to_expansion_tokens': True}
    for query_length in ('32', 3):
        (tmp_path / 'config_sentence_transformers.json').write_text(
            json.dumps({**pylate, 'query_length': query_length})
        )
        with pytest.raises(UserError, match=rf'config_sentence_transformers.json: found query_length {query_length!r}'):
            read_multi_vector(tmp_path, 64)
    (tmp_path / 'config_sentence_transformers.json').write_text(json.dumps(pylate))
    assert read_multi_vector(tmp_path, 64) == MultiVector('[Q] ', '[D] ', 8, 7, True, True, PUNCTUATION)
    # The lengths may exceed max_seq_length, which PyLate saves without the prefix. The prompt follows the prefix.
    (tmp_path / 'sentence_bert_config.json').write_text(json.dumps({'max_seq_length': 6}))
    pylate |= {'prompts': {'query': '[Q] find: ', 'document': 'text: '}}
    (tmp_path / 'config_sentence_transformers.json').write_text(json.dumps(pylate))
    expected = MultiVector('[Q] find: ', '[D] text: ', 8, 7, True, True, PUNCTUATION)
    assert read_multi_vector(tmp_path, 64) == expected
    assert read_multi_vector(tmp_path, 7) == dataclasses.replace(expected, query_len=7)
    with pytest.raises(UserError, match='found queries of 8 tokens, documents of up to 7'):
        settings_as_options(str(tmp_path), expected)
    (tmp_path / 'config_sentence_transformers.json').write_text(json.dumps({**pylate, 'query_expansion': None}))
    assert not read_multi_vector(tmp_path, 64).augment
    (tmp_path / 'modules.json').write_text(json.dumps([{'type': 'Transformer', 'path': ''}]))
    with pytest.raises(UserError, match=r'found no Dense module.* copy the folder without modules\.json'):
        read_projection(tmp_path)
