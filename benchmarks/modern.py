"""ModernBERT on the CPU: bertjax compared with transformers in PyTorch, in one process.

    OMP_WAIT_POLICY=passive python benchmarks/modern.py --threads=2

The batch has sequences of mixed lengths. transformers pads each sequence to the length of the longest. bertjax packs
the sequences into rows of this length ('packed'), or also pads them ('padded'). Two computations are timed, in float32
and without dropout:

* a training step of Ettin's 17M (arXiv 2507.11412): 30 % masks, forward, backward, clipping, AdamW. transformers
  computes the logits of all positions, or only those of masked positions in modes that end in `-sparse`;
* the last hidden states of ModernBERT-base (arXiv 2412.13663).

Both libraries start from the same random weights. The script first checks that losses and states are equal. Then it
runs the modes in turn, and prints the median CPU time of each mode and the median ratio to the first mode. Set
OMP_WAIT_POLICY=passive, so that PyTorch's threads do not spin and add to the CPU time. Needs the extra `bench`.

On 25 November 2026 (two busy cores with AVX-512, jax 0.10.2, torch 2.13.0, transformers 5.24.0), packed rows computed
the states 2.6 times as fast as eager and 1.9 times as fast as sdpa. They ran a training step 3.8 times as fast as
eager, 2.9 to 3.6 times as fast as sdpa, and 1.3 times as fast as sdpa-sparse. Less padding explains a factor of 1.8:
9 rows of 512 instead of 16. In the layers with global attention, 63 % of the pairs of positions in a packed row are in
the same sequence.
"""

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import numpy as np
import torch
import transformers
from absl import app, flags

from bertjax.config.recipes import pretraining_config
from bertjax.convert.load import load_pretraining_model
from bertjax.cores import schedulable_cores
from bertjax.data.batch import pretraining_batch_spec
from bertjax.data.packing import best_fit
from bertjax.model.bert import BertForPreTraining
from bertjax.model.row_packing import BatchLayout
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.compiled_steps import compile_steps
from bertjax.training.state import put_params

OURS, THEIRS = ('packed', 'padded'), ('eager', 'sdpa', 'eager-sparse', 'sdpa-sparse')
_ONLY = flags.DEFINE_list('only', ['train', 'forward'], 'The computations.')
_MODES = flags.DEFINE_list('modes', [*OURS, *THEIRS], f'The modes: {OURS} of bertjax, {THEIRS} of transformers.')
_SEQUENCES = flags.DEFINE_integer('sequences', 16, 'The number of sequences of the batch.')
_SHORTEST = flags.DEFINE_integer('shortest', 20, 'The length of the shortest sequence.')
_LONGEST = flags.DEFINE_integer('longest', 512, 'The length of the longest sequence; the others are evenly spaced.')
_ROUNDS = flags.DEFINE_integer('rounds', 7, 'The number of timed rounds.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'See config.model.scan_layers.')
_THREADS = flags.DEFINE_integer('threads', 0, 'The threads of PyTorch; 0: its default. XLA uses all cores.')
MASK_RATE = 0.3
LEARNING_RATE = 1e-3

Tokens = list[np.ndarray]


def peer_config(name: str) -> transformers.ModernBertConfig:
    """Returns the published config of 'ettin-17m' or 'modernbert-base'."""
    layers, width, mlp_dim, heads = {'ettin-17m': (7, 256, 384, 4), 'modernbert-base': (22, 768, 1152, 12)}[name]
    return transformers.ModernBertConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=mlp_dim, num_attention_heads=heads
    )


def make_sequences(vocab_size: int) -> Tokens:
    rng = np.random.default_rng(0)
    lengths = np.linspace(_SHORTEST.value, _LONGEST.value, _SEQUENCES.value).astype(int)
    return [rng.integers(1000, vocab_size - 1000, length) for length in lengths]


def make_masks(sequences: Tokens) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [np.sort(rng.choice(len(x), round(MASK_RATE * len(x)), replace=False)) for x in sequences]


def make_rows(mode: str, lengths: np.ndarray) -> list[np.ndarray]:
    """Returns the numbers of the sequences in each row of bertjax."""
    if mode == 'padded':
        return [np.array([i]) for i in range(len(lengths))]
    order, row = best_fit(lengths, _LONGEST.value)
    return np.split(order, np.flatnonzero(np.diff(row)) + 1)


def pad(sequences: Tokens) -> dict[str, np.ndarray]:
    """Returns the inputs of an encoder with one sequence per row."""
    mask = (np.arange(_LONGEST.value) < np.array([len(x) for x in sequences])[:, None]).astype(np.int32)
    ids = np.zeros_like(mask)
    ids[mask > 0] = np.concatenate(sequences)
    return {'input_ids': ids, 'segment_ids': np.zeros_like(mask), 'attention_mask': mask}


def pretraining_batch(mode: str, sequences: Tokens, masks: list[np.ndarray], mask_id: int) -> dict[str, np.ndarray]:
    """Returns a batch of bertjax; see bertjax/data/batch.py."""
    rows = make_rows(mode, np.array([len(x) for x in sequences]))
    predictions = max(sum(len(masks[i]) for i in row) for row in rows)
    spec = pretraining_batch_spec(len(rows), _LONGEST.value, predictions, packed=mode == 'packed')
    batch = {name: np.zeros(*shape_and_dtype) for name, shape_and_dtype in spec.items()}
    for r, row in enumerate(rows):
        start = used = 0
        for number, i in enumerate(row):
            end, count = start + len(sequences[i]), len(masks[i])
            batch['input_ids'][r, start:end] = sequences[i]
            batch['attention_mask'][r, start:end] = 1
            batch['input_ids'][r, start + masks[i]] = mask_id
            batch['masked_positions'][r, used : used + count] = start + masks[i]
            batch['masked_ids'][r, used : used + count] = sequences[i][masks[i]]
            batch['masked_weights'][r, used : used + count] = 1
            if mode == 'packed':
                batch['sequence_ids'][r, start:end] = number + 1
                batch['position_ids'][r, start:end] = np.arange(end - start)
                batch['cls_positions'][r, number] = start
            start, used = end, used + count
    return batch


def our_step(folder: str, batch: Mapping[str, np.ndarray]) -> Callable[[], float]:
    """Returns a function that runs a training step of bertjax and returns its loss."""
    imported = load_pretraining_model(folder, scan_layers=_SCAN.value)
    config = pretraining_config(
        'mini',
        seq_len=_LONGEST.value,
        batch_size=len(batch['input_ids']),
        packing='sequence_ids' in batch,
        max_predictions=batch['masked_ids'].shape[1],
        learning_rate=LEARNING_RATE,
    )
    config.optimizer.update(name='adamw', clip_norm=1.0)
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices())
    setup = build_pretraining_setup(settings, imported.config, mesh)
    phase = settings.resolve_phases(1000)[0]
    with mesh_context(mesh):
        state = setup.create(seed=0)
        state = state.replace(params=put_params(imported.params, setup.state))
    arrays = jax.device_put(batch, batch_sharding(mesh))
    numbers = jax.device_put((np.uint32(0), phase.make_schedule(LEARNING_RATE), np.uint32(0)), replicated(mesh))
    program = compile_steps(setup, phase, phase.batches)[phase.seq_len]

    def step() -> float:
        nonlocal state
        state, metrics = program(state, arrays, *numbers)
        total, weight = jax.device_get(metrics)['sums']['mlm_loss']
        return float(total / weight)

    return step


def their_step(folder: str, mode: str, sequences: Tokens, masks: list[np.ndarray], mask_id: int) -> Callable[[], float]:
    """Returns a function that does the same with transformers."""
    attention, _, sparse = mode.partition('-')
    model = transformers.ModernBertForMaskedLM.from_pretrained(
        folder, attn_implementation=attention, sparse_prediction=bool(sparse)
    ).train()
    inputs = pad(sequences)
    ids, labels = inputs['input_ids'].astype(np.int64), np.full(inputs['input_ids'].shape, -100)
    for row, (sequence, mask) in enumerate(zip(sequences, masks, strict=True)):
        ids[row, mask], labels[row, mask] = mask_id, sequence[mask]
    ids, labels, attended = map(torch.from_numpy, (ids, labels, inputs['attention_mask']))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

    def step() -> float:
        loss = model(input_ids=ids, attention_mask=attended, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def our_forward(folder: str, mode: str, sequences: Tokens) -> Callable[[], np.ndarray]:
    """Returns a function that computes the hidden states of all tokens, float32 [tokens, D], in bertjax."""
    imported = load_pretraining_model(folder, scan_layers=_SCAN.value)
    model = BertForPreTraining(imported.config)
    batch = pretraining_batch(mode, sequences, [np.zeros(0, int)] * len(sequences), 0)
    of_rows = np.concatenate(make_rows(mode, np.array([len(x) for x in sequences])))
    ends = np.cumsum([len(sequences[i]) for i in of_rows])[:-1]

    def encode(model: BertForPreTraining, batch: Mapping[str, jax.Array]) -> jax.Array:
        arrays = [batch[name] for name in ('sequence_ids', 'position_ids', 'cls_positions') if name in batch]
        inputs = [batch[name] for name in ('input_ids', 'segment_ids', 'attention_mask')]
        return model.encoder(*inputs, layout=BatchLayout(*arrays) if arrays else None)[0]

    run = jax.jit(lambda params, batch: model.apply({'params': params}, batch, method=encode))
    params, arrays = jax.device_put((imported.params, batch))

    def forward() -> np.ndarray:
        hidden = np.asarray(run(params, arrays))[batch['attention_mask'] > 0]
        parts = np.split(hidden, ends)
        return np.concatenate([parts[i] for i in np.argsort(of_rows)])

    return forward


def their_forward(folder: str, mode: str, sequences: Tokens) -> Callable[[], np.ndarray]:
    """Returns a function that does the same with transformers."""
    model = transformers.ModernBertModel.from_pretrained(folder, attn_implementation=mode).eval()
    inputs = pad(sequences)
    ids, attended = (torch.from_numpy(inputs[name]) for name in ('input_ids', 'attention_mask'))

    @torch.inference_mode()
    def forward() -> np.ndarray:
        hidden = model(input_ids=ids, attention_mask=attended).last_hidden_state.numpy()
        return hidden[inputs['attention_mask'] > 0]

    return forward


def build(computation: str, folder: str) -> dict[str, Callable[[], Any]]:
    """Returns {mode: function} for the computation 'train' or 'forward'; writes the model to `folder`."""
    torch.manual_seed(0)
    config = peer_config('ettin-17m' if computation == 'train' else 'modernbert-base')
    transformers.ModernBertForMaskedLM(config).save_pretrained(folder)
    sequences = make_sequences(config.vocab_size)
    if computation == 'forward':
        modes = [mode for mode in _MODES.value if not mode.endswith('-sparse')]
        return {mode: (our_forward if mode in OURS else their_forward)(folder, mode, sequences) for mode in modes}
    masks, mask_id = make_masks(sequences), config.vocab_size - 84
    make_step = functools.partial(their_step, folder, sequences=sequences, masks=masks, mask_id=mask_id)
    return {
        mode: our_step(folder, pretraining_batch(mode, sequences, masks, mask_id)) if mode in OURS else make_step(mode)
        for mode in _MODES.value
    }


def compare(computation: str, functions: Mapping[str, Callable[[], Any]]) -> None:
    """Checks that the first results are equal, times the functions in turn, and prints the medians."""
    results = {mode: function() for mode, function in functions.items()}
    first = next(iter(results))
    difference = max(float(np.max(np.abs(results[first] - x))) for x in results.values())
    print(f'{computation}: largest difference of the first results {difference:.1e}')
    assert difference < 1e-3, 'the modes do not compute the same'
    used: dict[str, list[float]] = {mode: [] for mode in functions}
    for _ in range(_ROUNDS.value):
        for mode, function in functions.items():
            start = time.process_time()
            function()
            used[mode].append(time.process_time() - start)
    for mode, seconds in used.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(seconds, used[first], strict=True))
        print(f'{mode:>14}: CPU {statistics.median(seconds) * 1000:7.0f} ms; {first} is {ratio:.2f} times as fast')


def main(argv: list[str]) -> None:
    del argv
    if _THREADS.value:
        torch.set_num_threads(_THREADS.value)
    print(f'{schedulable_cores()} cores, jax {jax.__version__}, torch {torch.__version__}, ', end='')
    print(f'transformers {transformers.__version__}; {_SEQUENCES.value} sequences', flush=True)
    for computation in _ONLY.value:
        with tempfile.TemporaryDirectory() as folder:
            compare(computation, build(computation, folder))


if __name__ == '__main__':
    app.run(main)
