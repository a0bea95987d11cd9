"""Tests that StableHLO exports give our logits in a process without bertjax."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export

from bertjax.convert.content import ExportContent
from bertjax.convert.stablehlo import export_stablehlo
from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import BertForMultipleChoice, BertForTokens
from bertjax.text.tokenizer import load_tokenizer

READER = """
import json, sys
import numpy as np, safetensors.numpy
from jax import export

sys.modules['bertjax'] = None  # cannot be imported
weights = safetensors.numpy.load_file('weights.safetensors')
for name in json.loads(sys.argv[1]):
    with open(f'{name}.jax_export', 'rb') as file:
        function = export.deserialize(bytearray(file.read()))
    for number in (0, 1):
        with np.load(f'{name}{number}.npz') as arrays:
            inputs = [arrays[key] for key in ('input_ids', 'segment_ids', 'attention_mask')]
            for key, x in function.call(weights, *inputs).items():
                assert x.shape == arrays[key].shape, (key, x.shape)
                print(float(abs(np.asarray(x) - arrays[key]).max()))
"""


def largest_differences(folder: pathlib.Path, names: list[str]) -> list[float]:
    """Runs the exported functions without bertjax; returns the largest difference of each output at each shape."""
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    call = [sys.executable, '-c', READER, json.dumps(names)]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def batch(shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    mask = (np.arange(shape[-1]) < lengths).astype(np.int32)
    ids, segments = rng.integers(5, 143, shape), rng.integers(0, 2, shape)
    return {'input_ids': ids.astype(np.int32), 'segment_ids': segments.astype(np.int32), 'attention_mask': mask}


@pytest.mark.slow
def test_a_pretrained_model_runs_without_bertjax(small_config, make_params, tokenizer, tmp_path):
    """Equal parameters also give equal bytes, which contain no path of this repository."""
    config = small_config()
    model, params, folder = BertForPreTraining(config), make_params(small_config()), tmp_path / 'one'
    export_stablehlo(ExportContent(model, params, tokenizer), folder)
    export_stablehlo(ExportContent(model, params, tokenizer), tmp_path / 'two')
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / 'two').iterdir()}
    assert str(pathlib.Path(__file__).parent.parent.parent).encode() not in b''.join(files.values())
    function = export.deserialize(bytearray(files['mlm.jax_export']))
    assert function.platforms == ('cpu', 'cuda', 'tpu') and function.nr_devices == 1
    facts = json.loads(files['functions.json'])
    assert facts['encoder']['outputs'] == {'hidden': 'float32[b, s, 16]', 'pooled': 'float32[b, 16]'}
    for number, shape in enumerate([(3, 32), (1, 7)]):
        arrays = batch(shape, number)
        encode = jax.jit(lambda *inputs: model.apply({'params': params}, *inputs, method=model.encode))
        hidden, _, pooled = encode(*arrays.values())
        positions = np.broadcast_to(np.arange(shape[1]), shape)
        predict = jax.jit(lambda *inputs: model.apply({'params': params}, *inputs))
        logits = predict(*arrays.values(), positions)
        np.savez(folder / f'encoder{number}.npz', hidden=hidden, pooled=pooled, **arrays)
        mlm = logits['mlm_logits'][..., : config.vocab_size]
        np.savez(folder / f'mlm{number}.npz', mlm_logits=mlm, nsp_logits=logits['nsp_logits'], **arrays)
    differences = largest_differences(folder, ['encoder', 'mlm'])
    assert len(differences) == 8 and max(differences) < 1e-6
    assert load_tokenizer(folder).fingerprint == tokenizer.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    'make',
    [
        lambda config: BertForMultipleChoice(config(), 1),
        lambda config: BertForTokens(config(scan_layers=False, pre_norm=True), 3, bilstm_units=2, layers='sum_all'),
    ],
    ids=['choice', 'tokens'],
)
def test_a_fine_tuned_model_runs_without_bertjax(small_config, make_params, tokenizer, tmp_path, make):
    model = make(small_config)
    params = make_params(model)
    export_stablehlo(ExportContent(model, params, tokenizer, extra_files={'task.json': '{}'}), tmp_path / 'model')
    for number, shape in enumerate([(2, 4, 9), (1, 2, 32)]):
        arrays = batch(shape if len(model.smallest_inputs[0]) == 3 else shape[1:], number)
        outputs = jax.jit(lambda *inputs: model.apply({'params': params}, *inputs))(*arrays.values())
        np.savez(tmp_path / 'model' / f'task{number}.npz', **outputs, **arrays)
    assert max(largest_differences(tmp_path / 'model', ['task'])) < 1e-6
    assert (tmp_path / 'model' / 'task.json').read_text() == '{}'


@pytest.mark.slow
def test_the_code_of_the_readme_runs(small_config, make_params, tokenizer, tmp_path):
    export_stablehlo(
        ExportContent(BertForPreTraining(small_config(nsp=False)), make_params(small_config(nsp=False)), tokenizer),
        tmp_path / 'x',
    )
    code = (tmp_path / 'x' / 'README.md').read_text().split('```')[1].removeprefix('python')
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    call = [sys.executable, '-c', f'{code}\nprint({{name: x.shape for name, x in outputs.items()}})']
    done = subprocess.run(call, cwd=tmp_path / 'x', env=environment, capture_output=True, text=True)
    assert done.stdout == "{'hidden': (1, 3, 16)}\n", done.stderr
