"""Tests that StableHLO exports give our logits in a process without bertjax."""

import json
import pathlib

import jax
import numpy as np
import pytest
from exported_functions import random_batch, run_readme, run_without_bertjax
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
    """Runs the exported functions. Returns the largest difference of each output at each shape."""
    return [float(line) for line in run_without_bertjax(folder, READER, json.dumps(names)).split()]


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
        arrays = random_batch(shape, number)
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
    assert run_readme(folder) == "{'hidden': (1, 3, 16), 'pooled': (1, 16)}\n"


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
    export_stablehlo(ExportContent(model, params, tokenizer, extra_files={'task.json': b'{}'}), tmp_path / 'model')
    for number, shape in enumerate([(2, 4, 9), (1, 2, 32)]):
        arrays = random_batch(shape if len(model.smallest_inputs[0]) == 3 else shape[1:], number)
        outputs = jax.jit(lambda *inputs: model.apply({'params': params}, *inputs))(*arrays.values())
        np.savez(tmp_path / 'model' / f'task{number}.npz', **outputs, **arrays)
    assert max(largest_differences(tmp_path / 'model', ['task'])) < 1e-6
    assert (tmp_path / 'model' / 'task.json').read_text() == '{}'
