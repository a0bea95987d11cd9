"""Tests that ONNX exports give our logits at any size, in a process with onnxruntime and without JAX and bertjax."""

import importlib.util
import json
import logging
import pathlib

import jax
import numpy as np
import pytest
from exported_functions import random_batch, run_readme, run_without_bertjax

from bertjax.convert import onnx
from bertjax.convert.content import ExportContent
from bertjax.convert.functions import make_functions
from bertjax.convert.onnx import OPSET, check_onnx, export_onnx
from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTokens
from bertjax.text.tokenizer import load_tokenizer

needs_extra = pytest.mark.skipif(not importlib.util.find_spec('jax2onnx'), reason='the extra onnx is not installed')

READER = """
import json, sys
import numpy as np, onnxruntime

for name in json.loads(sys.argv[1]):
    session = onnxruntime.InferenceSession(f'{name}.onnx', providers=['CPUExecutionProvider'])
    print(json.dumps({output.name: output.shape for output in session.get_outputs()}))
    for number in range(3):
        with np.load(f'{name}{number}.npz') as arrays:
            names = [output.name for output in session.get_outputs()]
            inputs = {entry.name: arrays[entry.name] for entry in session.get_inputs()}
            for key, x in zip(names, session.run(names, inputs), strict=True):
                assert x.shape == arrays[key].shape and x.dtype == np.float32, (key, x.shape)
                print(float(abs(x - arrays[key]).max()))
assert 'jax' not in sys.modules
"""
SHAPES = (3, 2, 32), (1, 4, 7), (2, 3, 1)


def check(model, params, folder: pathlib.Path) -> dict[str, list]:
    """Checks that outputs are within 1e-5 of ours at three shapes; returns the symbolic shape of each output."""
    names, sizes = list(make_functions(model)), {}
    for name, function in make_functions(model).items():
        ours = jax.jit(function)
        for number, shape in enumerate(SHAPES):
            shape = shape if len(model.smallest_inputs[0]) == 3 else shape[1:]
            arrays = random_batch(shape, number)
            outputs = ours(flat_paths(params), *arrays.values())
            np.savez(folder / f'{name}{number}.npz', **outputs, **arrays)
    lines = [json.loads(line) for line in run_without_bertjax(folder, READER, json.dumps(names)).splitlines()]
    for line in lines:
        if isinstance(line, dict):
            sizes |= line
    differences = [line for line in lines if isinstance(line, float)]
    assert len(differences) == len(SHAPES) * len(sizes) and max(differences) < 1e-5
    return sizes


@needs_extra
@pytest.mark.slow
def test_a_pretrained_model_runs_without_jax(small_config, make_params, tokenizer, tmp_path, caplog):
    """Equal parameters also give equal bytes. The bytes contain no path of this package, and nothing is logged."""
    model, params = BertForPreTraining(small_config()), make_params(small_config())
    export_onnx(ExportContent(model, params, tokenizer, extra_files={'task.json': b'{}'}), tmp_path / 'one')
    export_onnx(ExportContent(model, params, tokenizer, extra_files={'task.json': b'{}'}), tmp_path / 'two')
    assert logging.getLogger('jax2onnx').level == logging.getLogger('onnx_ir').level == logging.NOTSET
    files = {path.name: path.read_bytes() for path in (tmp_path / 'one').iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / 'two').iterdir()}
    assert str(pathlib.Path(onnx.__file__).parent).encode() not in b''.join(files.values()) and not caplog.records
    sizes = check(model, params, tmp_path / 'one')
    assert sizes == {
        'hidden': ['b', 's', 16], 'pooled': ['b', 16], 'mlm_logits': ['b', 's', 143], 'nsp_logits': ['b', 2]
    }  # fmt: skip
    import onnx as format  # The extra "onnx" installs this package.

    assert [entry.version for entry in format.load(tmp_path / 'one' / 'mlm.onnx').opset_import] == [OPSET]
    assert load_tokenizer(tmp_path / 'one').fingerprint == tokenizer.fingerprint and files['task.json'] == b'{}'
    assert run_readme(tmp_path / 'one') == "{'hidden': (1, 3, 16), 'pooled': (1, 16)}\n"


MODERN = dict(
    position='rope', mlp='geglu', pre_norm=True, first_attention_norm=False, projection_bias=False, norm_bias=False,
    pooler='transform', pooling='mean', num_segments=0, nsp=False, attention_window=6,
)  # fmt: skip


@needs_extra
@pytest.mark.slow
@pytest.mark.parametrize(
    'make',
    [
        lambda config: BertForMultipleChoice(config(), 1),
        lambda config: BertForTokens(config(scan_layers=False, pre_norm=True, causal=True), 3, layers='sum_all'),
        lambda config: BertForSpans(config(num_segments=0, pooler='relu'), 2),
        lambda config: BertForClassification(config(num_segments=1, remat='full', mlp='gelu_tanh'), 5),
        lambda config: BertForClassification(config(**MODERN), 5),
        lambda config: BertForClassification(config(causal=True), 5),
    ],
    ids=['choice', 'tokens', 'spans', 'classes', 'modern', 'causal'],
)
def test_a_fine_tuned_model_runs_without_jax(small_config, make_params, tokenizer, tmp_path, make):
    model = make(small_config)
    params = make_params(model)
    export_onnx(ExportContent(model, params, tokenizer), tmp_path / 'model')
    sizes = check(model, params, tmp_path / 'model')
    assert all({*size} <= {'b', 'c', 's', 3, 5} for size in sizes.values()), sizes


def test_models_that_cannot_be_exported_are_errors(small_config, monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    check_onnx(small_config(), BertForTokens(small_config(), 3))
    with pytest.raises(UserError, match=r'config\.task\.bilstm_units: found 2 with onnx'):
        check_onnx(small_config(), BertForTokens(small_config(), 3, bilstm_units=2))
    wide = {'width': 1024, 'num_layers': 24, 'num_heads': 16, 'mlp_dim': 4096, 'max_positions': 512}
    check_onnx(small_config(**wide, vocab_size=30522))
    with pytest.raises(UserError, match=r'onnx for 2\.\d\d GiB of weights, expected at most 1\.98'):
        check_onnx(small_config(**wide, vocab_size=250002))  # XLM-R large
