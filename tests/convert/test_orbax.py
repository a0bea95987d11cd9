"""Tests Orbax exports and reading them in other programs."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax.convert.content import ExportContent
from bertjax.convert.heads import TOKEN_CLASSIFICATION
from bertjax.convert.load import load_pretraining_model, load_task_model
from bertjax.convert.orbax import export_orbax
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTokens
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding
from bertjax.tasks.late_interaction.task import LATE_INTERACTION, LateInteractionTask
from bertjax.text.tokenizer import load_tokenizer

READER = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
assert jax.device_count() == 1
with ocp.StandardCheckpointer() as checkpointer:
    params = checkpointer.restore(sys.argv[1])
np.testing.assert_array_equal(params['kernel'], np.arange(16.0).reshape(8, 2))
"""


@pytest.mark.slow
def test_one_device_reads_the_export_of_eight_devices(
    tokenizer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    mesh = make_mesh({'data': 8, 'fsdp': 1, 'tensor': 1})
    kernel = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(8, 2), batch_sharding(mesh))
    assert len(kernel.sharding.device_set) == 8
    export_orbax(ExportContent(BertForPreTraining(BertConfig()), {'kernel': kernel}, tokenizer), tmp_path)
    monkeypatch.delenv('XLA_FLAGS')
    subprocess.run([sys.executable, '-c', READER, str((tmp_path / 'params').resolve())], check=True)


@pytest.mark.parametrize(
    'changes',
    [{}, {'pre_norm': True}, {'scan_layers': False, 'pre_norm': True, 'nsp': False, 'mlp': 'relu'}],
    ids=str,
)
def test_a_model_is_read_back(small_config, make_params, tokenizer, assert_same_params, tmp_path, changes):
    """Orbax is the only format for pre-LN models."""
    config = small_config(**changes)
    params = make_params(config)
    export_orbax(ExportContent(BertForPreTraining(config), params, tokenizer), tmp_path / 'model')
    imported = load_pretraining_model(tmp_path / 'model', scan_layers=config.scan_layers)
    assert imported.config == config and imported.missing == imported.unused == []
    assert_same_params(imported.params, params)
    assert load_tokenizer(tmp_path / 'model').fingerprint == tokenizer.fingerprint


@pytest.mark.slow
def test_a_task_model_that_transformers_lacks_is_read_back(
    tokenizer, small_config, make_params, assert_same_params, tmp_path
):
    """The model has a BiLSTM on the sum of the last four layers. Its head needs the same labels, in any order."""
    model = BertForTokens(small_config(num_layers=4), 2, bilstm_units=3, layers='sum_last_four')
    params, task = make_params(model), {'id2label': {0: 'O', 1: 'B'}}
    export_orbax(ExportContent(model, params, tokenizer, head=TOKEN_CLASSIFICATION, task=task), tmp_path / 'model')
    imported = load_task_model(tmp_path / 'model', model, TOKEN_CLASSIFICATION, id2label=task['id2label'])
    assert imported.missing == imported.unused == []
    assert_same_params(imported.params, params)
    turned = load_task_model(tmp_path / 'model', model, TOKEN_CLASSIFICATION, id2label={0: 'B', 1: 'O'})
    assert turned.missing == []
    np.testing.assert_array_equal(turned.params['head']['kernel'], params['head']['kernel'][:, ::-1])
    other = load_task_model(tmp_path / 'model', model, TOKEN_CLASSIFICATION, id2label={0: 'O', 1: 'I'})
    assert other.missing == ['head/bias', 'head/kernel']


def test_a_projection_of_another_width_is_initialized(tokenizer, small_config, make_params, tmp_path):
    narrow, wide = (LateInteractionTask('', 16, query_len=8, dim=dim).build_module(small_config()) for dim in (4, 6))
    params = make_params(narrow)
    export_orbax(ExportContent(narrow, params, tokenizer, head=LATE_INTERACTION), tmp_path / 'model')
    imported = load_task_model(tmp_path / 'model', narrow, LATE_INTERACTION)
    np.testing.assert_array_equal(imported.params['head']['kernel'], params['head']['kernel'])
    assert load_task_model(tmp_path / 'model', wide, LATE_INTERACTION).missing == ['head/kernel']
    params['head']['kernel'] = np.ones((9, 4), np.float32)  # the projection of an encoder of another width
    export_orbax(ExportContent(narrow, params, tokenizer, head=LATE_INTERACTION), tmp_path / 'mixed')
    with pytest.raises(UserError, match=r'found shape \(4, 9\), expected \(6, 16\)'):
        load_task_model(tmp_path / 'mixed', wide, LATE_INTERACTION)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # From tensorstore's threads.
def test_damage_is_detected(tokenizer, small_config, make_params, assert_same_params, tmp_path):
    """Without an error, Orbax reads other values after most flipped bits. A few bytes of its files have no effect."""
    folder, params, errors = tmp_path / 'model', make_params(small_config()), set()
    export_orbax(ExportContent(BertForPreTraining(small_config()), params, tokenizer), folder)
    for path in [path for path in (folder / 'params').rglob('*') if path.is_file() and path.stat().st_size > 4000]:
        whole = path.read_bytes()
        for at in (len(whole) // 3, len(whole) // 2):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            try:
                assert_same_params(load_pretraining_model(folder).params, params)
            except UserError as error:
                assert error.where == str(folder / 'params')
                errors.add(error.found)
        path.write_bytes(whole)
    assert 'values that do not match their checksum' in errors
    for text in ('[]', '{}', '{"head": 3}', '{"vocab_size": "x"}', '{"vocab_size": 5, "width": 3}'):
        (folder / 'model.json').write_text(text)
        with pytest.raises(UserError, match=r'model\.json: found '):
            load_pretraining_model(folder)
