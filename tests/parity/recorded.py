"""Records PyTorch's results for a BERT with deterministic weights, for machines without PyTorch.

python tests/parity/recorded.py        # needs PyTorch and transformers; writes recorded.json
"""

import functools
import json
import pathlib
import tempfile
import zlib

import numpy as np
import safetensors.numpy

FILE = pathlib.Path(__file__).with_name('recorded.json')
DIMS = dict(
    vocab_size=53, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
    max_position_embeddings=32, type_vocab_size=2,
)  # fmt: skip
B, S, P = 4, 20, 4
LENGTHS = np.array([20, 13, 7, 2])


def _numbers(name: str, *shape: int) -> np.ndarray:
    # NumPy guarantees that the stream of RandomState never changes.
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def batch() -> dict[str, np.ndarray]:
    """Returns rows of several lengths in two segments, with up to four predictions each, at positions 0, 2, 4 and 6."""
    real = np.arange(S) < LENGTHS[:, None]
    counts = np.minimum(LENGTHS // 2, P)
    ids = (np.abs(_numbers('ids', B, S + P)) * 1000).astype(np.int64) % (DIMS['vocab_size'] - 1) + 1
    predicted = np.arange(P) < counts[:, None]
    return {
        'input_ids': np.where(real, ids[:, :S], 0).astype(np.int32),
        'segment_ids': (real & (np.arange(S) >= LENGTHS[:, None] // 2)).astype(np.int32),
        'attention_mask': real.astype(np.int32),
        'masked_positions': np.where(predicted, 2 * np.arange(P), 0).astype(np.int32),
        'masked_ids': np.where(predicted, ids[:, S:], 0).astype(np.int32),
        'masked_weights': predicted.astype(np.float32),
        'nsp_labels': np.array([0, 1, 1, 0], np.int32),
        'nsp_weights': np.ones(B, np.float32),
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    D, F, V = DIMS['hidden_size'], DIMS['intermediate_size'], DIMS['vocab_size']

    def norm(name: str) -> dict:
        return {f'{name}.weight': (D,), f'{name}.bias': (D,)}

    def dense(name: str, outputs: int, inputs: int) -> dict:
        return {f'{name}.weight': (outputs, inputs), f'{name}.bias': (outputs,)}

    shapes = {'bert.embeddings.word_embeddings.weight': (V, D)}
    shapes |= {'bert.embeddings.position_embeddings.weight': (DIMS['max_position_embeddings'], D)}
    shapes |= {'bert.embeddings.token_type_embeddings.weight': (2, D), **norm('bert.embeddings.LayerNorm')}
    for layer in (f'bert.encoder.layer.{i}' for i in range(DIMS['num_hidden_layers'])):
        for name in ('query', 'key', 'value'):
            shapes |= dense(f'{layer}.attention.self.{name}', D, D)
        shapes |= dense(f'{layer}.attention.output.dense', D, D) | norm(f'{layer}.attention.output.LayerNorm')
        shapes |= dense(f'{layer}.intermediate.dense', F, D) | dense(f'{layer}.output.dense', D, F)
        shapes |= norm(f'{layer}.output.LayerNorm')
    shapes |= dense('bert.pooler.dense', D, D) | dense('cls.predictions.transform.dense', D, D)
    return {
        **shapes, **norm('cls.predictions.transform.LayerNorm'), 'cls.predictions.bias': (V,),
        **dense('cls.seq_relationship', 2, D),
    }  # fmt: skip


def write_model(folder: pathlib.Path) -> None:
    config = {'model_type': 'bert', 'architectures': ['BertForPreTraining'], 'hidden_act': 'gelu', **DIMS}
    (folder / 'config.json').write_text(json.dumps(config))
    weights = {
        name: 1 + 0.3 * _numbers(name, *shape) if name.endswith('LayerNorm.weight') else 0.15 * _numbers(name, *shape)
        for name, shape in _shapes().items()
    }
    safetensors.numpy.save_file(weights, folder / 'model.safetensors', {'format': 'pt'})  # transformers needs it.


def summarize(name: str, gradient: np.ndarray) -> list[float]:
    """Returns two numbers for a gradient: its norm, and its inner product with a fixed random array."""
    return [float(np.linalg.norm(gradient)), float((gradient * _numbers(f'of {name}', *gradient.shape)).sum())]


def by_pytorch(folder: pathlib.Path) -> dict:
    """Returns the hidden states, logits, loss and gradients that transformers computes for the model in `folder`."""
    import torch
    import transformers

    rows = batch()
    model = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation='eager').float().eval()
    labels = np.full((B, S), -100)
    at, column = np.nonzero(rows['masked_weights'])
    labels[at, rows['masked_positions'][at, column]] = rows['masked_ids'][at, column]
    long = functools.partial(torch.tensor, dtype=torch.long)
    outputs = model(
        input_ids=long(rows['input_ids']), token_type_ids=long(rows['segment_ids']),
        attention_mask=long(rows['attention_mask']), labels=long(labels),
        next_sentence_label=long(rows['nsp_labels']), output_hidden_states=True,
    )  # fmt: skip
    outputs.loss.backward()
    real = rows['attention_mask'] > 0
    return {
        'hidden': [layer.detach().numpy()[real].tolist() for layer in outputs.hidden_states],
        'mlm_logits': outputs.prediction_logits.detach().numpy()[at, rows['masked_positions'][at, column]].tolist(),
        'nsp_logits': outputs.seq_relationship_logits.detach().numpy().tolist(),
        'loss': outputs.loss.item(),
        'gradients': {name: summarize(name, x.grad.numpy()) for name, x in sorted(model.named_parameters())},
    }


def rounded(value: object) -> object:
    """Returns the nested value with all numbers rounded to 8 digits, more than the precision of float32."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else float(f'{value:.8g}')


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as top:
        write_model(pathlib.Path(top))
        FILE.write_text(json.dumps(rounded(by_pytorch(pathlib.Path(top)))) + '\n')
