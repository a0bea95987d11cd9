"""Tests checkpoints of google-research/bert: reading published ones, writing TensorFlow's bytes, and reporting damage.

TensorFlow 2.19.1 made the bytes and checksums below with `tf.raw_ops.SaveV2`, `tf.raw_ops.MergeV2Checkpoints` and
`tf.train.load_checkpoint`.
"""

import base64
import hashlib
import json
import pathlib
import random
import re

import ml_dtypes
import numpy as np
import pytest

import bertjax
from bertjax.convert.content import ExportContent
from bertjax.convert.google import table
from bertjax.convert.google.bundle import Bundle, write_bundle
from bertjax.convert.google.names import from_google, is_slot, to_google
from bertjax.convert.google.read import find_newest
from bertjax.convert.google.save import check_google, export_google
from bertjax.convert.heads import MULTIPLE_CHOICE, QUESTION_ANSWERING, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model, load_task_model, read_config, read_source
from bertjax.errors import UserError
from bertjax.files import protobuf
from bertjax.model.bert import BertForPreTraining
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer

NAME = 'bert_model.ckpt'
# Two data files, with float32, float64, int64, float16, bfloat16 and text.
MERGED = {
    'm.data-00000-of-00002': '00000004kL0000$002Nh004kM005vs000000000000000008hm000000000$00000000O;',
    'm.data-00001-of-00002': '2LJ#7000000000y06+jj07Sq)AV5$+1Y%L^mULx!bN',
    'm.index': '000IE0vZAc0RRINcrRfH0TKuj0tf;U0tf>r7&XA#Jr@E25n>1e5(E+g2m~M)C?GYMX&~_c1QU5LVrB>q5(E+g2m=@aAQC7BHGxH)p#'
    'lL7V+aWn02l!%2sOLcpAiB96KDt%5(E+g2n84cAP6W5H7yL<r~&~Ka|j0#1QG%W0T=-w7$^xf8%#4l000000RR91081js4gdfE00961006-9p|Ah}'
    '19||M0RR9100961007sTelDE>2&w@O00000000000000000000000000000000000000000039}fQuw`N81',
}
SLICED = {
    's.data-00000-of-00001': MERGED['m.data-00000-of-00002'],
    's.index': '000IE0U81b0RRjW0C+E900994fP#R32mulZ5&{SU5&{SVC>S-s+dUTm0~B~KVF&>d2oeGa1QG%W13Cr@0uTZU00IFKVh92f1QG%W1R'
    'xkFAT^k2An^bI000310001AXdw##0000100000!1AH6009Dd0Ac_D000310000?C{vne2y_kr000000000000000000000000000000000000000000'
    '012`+$oibw}F',
}
MANY_BLOCKS = (  # A table with five blocks.
    '00jtZWqB|#00000000001OW*#0RaI40RaI40R#aGG6Dhu0s;a80s;aA0Shw&0|NsC0|NsC0|NvB3^W7;1Ox;G1Ox;G1Oxy8000310002iq(|id1q'
    'f?pc`!8v1qB5K1qB5J0SPt+1_lNO1_lNO1OW;+2L}fS2L}fS2L}WJ3pfY}2nYxW2nYxW2m}EPISB~~2?+@a2?+@a2><{900961008Y0Bc}ib2y10'
    '|F)#`W3JMAe3JL@P2{8)`3kwSi3kwSb0SYn<3=9km3=9km3<LoSGYt(54Gj$q4Gj$q1OW^*4h{|u4h{|u4h{|u000000RR9107T8=d;kRqYh`&cH'
    '4hID4-XFy4+H@THV_aH5D*X$5D)|b3O5lE5fKp)5fKp)1OW>;5)u*;5)u*;5)u*w0Sq}46B82?6B82?6B82v0000100000N(N#~000000RR910Ko'
    'F0umA-DYh`&bGyqZn1p;ejc`!LwQUC=5Yh`&cG_C<s00jeUWqC0<g#uCl0000A0000K0000V0000400000Go$ye+yV&c0zLo$000000000000000'
    '0000000000000000000000000SNnjABy~sI'
)


def write_files(folder: pathlib.Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_bytes(base64.b85decode(text))


def file_hashes(folder: pathlib.Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope='session')
def published(shared: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a checkpoint of the original code, including the optimizer's variables."""
    return shared / 'checkpoints' / 'tf1-tiny-keras-bert'


@pytest.fixture
def exported(tokenizer, small_config, make_params, tmp_path):
    params = make_params(small_config())
    export_google(ExportContent(BertForPreTraining(small_config()), params, tokenizer), tmp_path / 'model')
    return tmp_path / 'model', params


def test_values_of_a_published_checkpoint_equal_tensorflows(published):
    bundle, digest = Bundle(published / NAME), hashlib.sha256()
    for name in sorted(bundle.shapes):
        digest.update(name.encode() + bundle.read(name).tobytes())
    assert len(bundle.shapes) == 139 and bundle.read('global_step').dtype == np.int64
    assert digest.hexdigest() == 'c1aa2f0d7a7a4b68d6c05cb1dad67fb30196c7860f7051a0d8eeb62907e573a8'


def test_a_published_checkpoint_starts_a_run(published):
    imported = load_pretraining_model(published)
    assert imported.missing == [] and imported.unused == ['93 variables of the optimizer']
    assert imported.config.mlp == 'gelu_tanh' and (imported.config.num_layers, imported.config.width) == (2, 4)
    query = imported.params['encoder']['layers']['attention']['query']['kernel'][1]  # [D, H, K]
    first = [0.01196587, -0.00060704, 0.0129872, 0.00267312]  # The first row of both kernels.
    np.testing.assert_allclose(query.reshape(4, 4)[0], first, rtol=1e-5)
    assert load_tokenizer(published / NAME).vocab_size == 15
    assert read_config(published / NAME) == read_config(published)


def test_written_bytes_equal_tensorflows(published, tmp_path):
    bundle = Bundle(published / NAME)
    tensors = {name: bundle.read(name) for name in bundle.shapes if name != 'global_step'}
    write_bundle(tmp_path / 'x', tensors)
    assert file_hashes(tmp_path) == {
        'x.data-00000-of-00001': '062466d51f714ba089397d38abf8002026e5ff8e6c04ed6d024435d493e7cd04',
        'x.index': '4372f5aea299a6e322a7646a5629e22cabd1f3a2b50bcc6e477e943bbe48ccd7',
    }


def test_several_data_files_and_dtypes_are_read(tmp_path):
    write_files(tmp_path, MERGED)
    bundle = Bundle(tmp_path / 'm')
    assert bundle.shapes == {'x/a': (2, 3), 'x/b': (4,), 'y/bf': (3,), 'y/c': (), 'y/h': (5,), 'y/s': (1,)}
    expected = {
        'x/a': np.arange(6, dtype=np.float32).reshape(2, 3),
        'x/b': np.arange(4.0),
        'y/bf': np.array([1.5, 2.5, 3.25], ml_dtypes.bfloat16),
        'y/c': np.array(7),
        'y/h': np.arange(5, dtype=np.float16),
    }
    for name, x in expected.items():
        actual = bundle.read(name)
        assert actual.dtype == x.dtype
        np.testing.assert_array_equal(actual, x)
    with pytest.raises(UserError, match='y/s: found values of type 7'):
        bundle.read('y/s')
    (tmp_path / 'm.data-00001-of-00002').unlink()
    with pytest.raises(UserError, match=r'm.data-00001-of-00002: found nothing, expected the data of m.index'):
        bundle.read('y/c')


def test_variables_in_slices_are_refused(tmp_path):
    write_files(tmp_path, SLICED)
    with pytest.raises(UserError, match=r's\.index: found variables in slices'):
        Bundle(tmp_path / 's')


def test_big_endian_numbers_are_refused(tmp_path):
    (tmp_path / 'x.index').write_bytes(table.write_table({b'': protobuf.varint_field(2, 1)}))
    with pytest.raises(UserError, match=r'x\.index: found big-endian numbers'):
        Bundle(tmp_path / 'x')


def test_a_table_is_read_back():
    rng = random.Random(0)
    entries = {
        rng.randbytes(rng.randrange(1, 30)).hex().encode(): rng.randbytes(rng.randrange(200)) for _ in range(300)
    }
    assert table.read_table(table.write_table(entries)) == dict(sorted(entries.items()))


def test_a_table_of_many_blocks_is_read():
    expected = {f'key{i:02}'.encode(): bytes([i]) * (i % 5 + 8) for i in range(20)}
    assert table.read_table(base64.b85decode(MANY_BLOCKS)) == expected


@pytest.mark.parametrize(
    'changes', [{}, {'mlp': 'gelu_tanh', 'nsp': False}, {'mlp': 'relu', 'scan_layers': False}], ids=str
)
def test_an_export_is_read_back(tokenizer, small_config, make_params, assert_same_params, tmp_path, changes):
    config = small_config(**changes)
    params = make_params(config)
    for name in ('one', 'two'):
        export_google(ExportContent(BertForPreTraining(config), params, tokenizer), tmp_path / name)
    assert file_hashes(tmp_path / 'one') == file_hashes(tmp_path / 'two')
    imported = load_pretraining_model(tmp_path / 'one', scan_layers=config.scan_layers)
    assert imported.config == config and imported.missing == imported.unused == []
    assert_same_params(imported.params, params)
    described = json.loads((tmp_path / 'one' / 'bert_config.json').read_text())
    assert described['hidden_act'] == ('relu' if config.mlp == 'relu' else 'gelu')
    assert load_tokenizer(tmp_path / 'one').fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize('head', [SEQUENCE_CLASSIFICATION, QUESTION_ANSWERING], ids=lambda head: head.architecture)
def test_a_task_model_is_read_back(tokenizer, small_config, make_params, assert_same_params, tmp_path, head):
    model = head.module(small_config(), 2)
    params = make_params(model)
    export_google(ExportContent(model, params, tokenizer, head=head), tmp_path / 'model')
    prefix = {'BertForQuestionAnswering': 'cls/squad/'}.get(head.architecture, '')
    assert Bundle(tmp_path / 'model' / NAME).shapes[f'{prefix}output_weights'] == (2, 16)
    imported = load_task_model(tmp_path / 'model', model, head)
    assert imported.missing == imported.unused == []
    assert_same_params(imported.params, params)


def test_a_classifier_has_as_many_labels_as_outputs(tokenizer, small_config, make_params, tmp_path):
    model = SEQUENCE_CLASSIFICATION.module(small_config(), 3)
    params = make_params(model)
    export_google(ExportContent(model, params, tokenizer, head=SEQUENCE_CLASSIFICATION), tmp_path)
    bert = bertjax.load(tmp_path)
    assert list(bert.classify('a')['probabilities']) == ['LABEL_0', 'LABEL_1', 'LABEL_2'] and not bert.missing


def test_tensors_equal_those_of_the_hugging_face_export(tokenizer, small_config, make_params, exported, tmp_path):
    folder, params = exported
    export_huggingface(ExportContent(BertForPreTraining(small_config()), params, tokenizer), tmp_path / 'hf')
    google, huggingface = read_source(folder).tensors, read_source(tmp_path / 'hf').tensors
    assert google.keys() == huggingface.keys()
    for name, x in huggingface.items():
        np.testing.assert_array_equal(google[name].values, x.values)
        assert from_google(to_google(name)) == name


def test_variables_of_optimizers_are_recognized():
    slots = [
        'global_step',
        'bert/pooler/dense/kernel/adam_m',
        'x/adam_v',
        'x/AdamWeightDecayOptimizer_1',
        'beta1_power',
    ]
    assert all(map(is_slot, slots))
    assert not any(map(is_slot, ['bert/pooler/dense/kernel', 'cls/predictions/output_bias', 'adam/kernel']))


def test_the_newest_of_several_checkpoints_is_chosen(exported):
    folder, _ = exported
    for step in (9, 10, 100):
        for end in ('index', 'data-00000-of-00001'):
            (folder / f'model.ckpt-{step}.{end}').write_bytes((folder / f'{NAME}.{end}').read_bytes())
    assert read_source(folder / 'model.ckpt-10').tensors.keys() == read_source(folder).tensors.keys()

    assert find_newest(folder).name == NAME
    (folder / f'{NAME}.index').unlink()
    assert find_newest(folder).name == 'model.ckpt-100'
    (folder / 'checkpoint').write_text('model_checkpoint_path: "/gone/model.ckpt-9"\nall_model_checkpoint_paths: "x"\n')
    assert find_newest(folder).name == 'model.ckpt-9'
    (folder / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-11"\n')
    with pytest.raises(UserError, match=r'checkpoint: found the checkpoint model.ckpt-11, which is not in this folder'):
        find_newest(folder)
    (folder / 'checkpoint').unlink()
    (folder / 'other.index').touch()
    with pytest.raises(UserError, match=r'found 4 checkpoints, model.ckpt-10, .*; give the path of one'):
        find_newest(folder)
    for file in folder.glob('*.index'):
        file.unlink()
    with pytest.raises(UserError, match=f'found no {NAME}.index'):
        find_newest(folder)


@pytest.mark.parametrize('changes', [{'pre_norm': True}, {'causal': True}, {'layer_norm_eps': 1e-5}], ids=str)
def test_a_model_that_the_original_code_lacks_is_refused(small_config, changes):
    (key,) = changes
    with pytest.raises(UserError, match=rf'config.model.{key}: .*remove google from config.export_formats'):
        check_google(small_config(**changes))


def test_a_head_or_a_vocabulary_that_the_original_code_lacks_is_refused(small_config):
    for head in (TOKEN_CLASSIFICATION, MULTIPLE_CHOICE):
        with pytest.raises(UserError, match=r'config.export_formats: found google for BertFor'):
            check_google(small_config(), head)
    with pytest.raises(UserError, match='found google with a sentencepiece vocabulary'):
        check_google(small_config(), None, 'sentencepiece')
    with pytest.raises(UserError, match=r'config\.model\.num_segments: found 1 with google'):
        check_google(small_config(num_segments=1))


@pytest.mark.parametrize('change', [{'strip_accents': False}, {'handle_chinese_chars': False}])
def test_a_tokenizer_that_the_original_code_lacks_is_refused(small_config, tokenizer, change):
    assert tokenizer.is_google
    settings = tokenizer._settings | {'normalizer': tokenizer._settings['normalizer'] | change}
    with pytest.raises(UserError, match=r'found google .*other rules for accents or Chinese'):
        check_google(small_config(), tokenizer=WordPieceTokenizer(settings))


def test_the_outputs_of_mnli_have_the_order_of_the_original_code(
    tokenizer, small_config, make_params, assert_same_params, tmp_path
):
    model = SEQUENCE_CLASSIFICATION.module(small_config(), 3)
    params, labels = make_params(model), ('entailment', 'neutral', 'contradiction')
    task = {'id2label': dict(enumerate(labels))}
    export_google(ExportContent(model, params, tokenizer, head=SEQUENCE_CLASSIFICATION, task=task), tmp_path / 'model')
    written = read_source(tmp_path / 'model').tensors['classifier.weight'].values
    np.testing.assert_array_equal(written, np.asarray(params['head']['kernel']).T[[2, 0, 1]])
    imported = load_task_model(tmp_path / 'model', model, SEQUENCE_CLASSIFICATION, id2label=task['id2label'])
    assert_same_params(imported.params, params)
    assert 'reordered from contradiction, entailment, neutral' in imported.head_note


def test_every_damaged_byte_of_an_index_is_detected(exported):
    folder, _ = exported
    path = folder / f'{NAME}.index'
    whole, rng = path.read_bytes(), random.Random(0)
    positions = rng.sample(range(len(whole)), 150) + list(range(len(whole) - 48, len(whole)))
    padding = range(len(whole) - 42, len(whole) - 8)  # The padding of the footer is ignored.
    for at in positions:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            Bundle(folder / NAME)
        except UserError as error:
            assert f'{NAME}.index: found ' in str(error)
        else:
            assert at in padding
    for size in (0, 10, 47, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        found = 'bytes that are not a complete table of TensorFlow' if size else 'an empty file'
        with pytest.raises(UserError, match=f'index: found {found}'):
            Bundle(folder / NAME)


def test_damaged_data_is_detected(exported):
    folder, _ = exported
    path = folder / f'{NAME}.data-00000-of-00001'
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(UserError, match=rf'{NAME}: (bert|cls)/\S+: found values that do not match their checksum'):
            load_pretraining_model(folder)
    path.write_bytes(whole[:-3])
    with pytest.raises(UserError, match='found the end of the data after'):
        load_pretraining_model(folder)


@pytest.mark.parametrize(
    'change, message',
    [
        ({'hidden_act': 'tanh'}, "bert_config.json: found hidden_act 'tanh', expected one of gelu, relu"),
        ({'hidden_size': 18}, 'expected .*, as in bert_config.json'),
        ({'num_hidden_layers': 3}, 'expected all tensors of an encoder of 3 layers'),
        ({'vocab_size': 'x'}, 'bert_config.json: found vocab_size'),
    ],
)
def test_a_config_of_another_model_is_refused(exported, change, message):
    folder, _ = exported
    path = folder / 'bert_config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        load_pretraining_model(folder)


def test_a_checkpoint_without_a_config_is_refused(exported):
    folder, _ = exported
    (folder / 'bert_config.json').unlink()
    with pytest.raises(UserError, match=re.escape('bert_config.json: found nothing')):
        read_source(folder / NAME)
    with pytest.raises(UserError, match=r'found no config.json or bert_config.json'):
        read_source(folder)
