"""The two sides of benchmarks/quality.py: a pre-training of bertjax and one of transformers' BertForPreTraining.

Both train on bertjax's rows with the batch size, schedule and optimizer of one phase. Their dropout masks differ. A
Hugging Face directory transfers parameters between the two.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
import transformers

from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model
from bertjax.data.loader import global_arrays, make_numbered_batch
from bertjax.parallel.partition import batch_sharding, mesh_context
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.phase import Phase
from bertjax.training.setup import Setup
from bertjax.training.state import TrainState, put_params

MODES = ('eager', 'sdpa', 'eager-bfloat16', 'sdpa-bfloat16', 'compile', 'compile-bfloat16')


class Ours:
    """The training step of bertjax, without the loop.

    Args:
      phase: A phase with one member, which sets the learning rate and the dropout.
      state: The initial state, which is donated.
    """

    def __init__(self, phase: Phase, state: TrainState):
        self._phase, self._state = phase, state
        self._step = phase.compile()
        self._step.prepare()
        self._metrics: Any = None

    def step(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """Runs one update on `rows`, the examples from number `first` on."""
        mesh, count = self._phase.setup.mesh, self._phase.settings.batch_size
        arrays = global_arrays(rows, batch_sharding(mesh), count)
        self._state, self._metrics = self._step(
            self._state, make_numbered_batch(first, arrays, batch_sharding(mesh), count)
        )

    def wait(self) -> float:
        """Waits for the last step; returns its loss, the sum of MLM and NSP."""
        sums = jax.device_get(self._metrics)['sums']
        return sum(float(sums[name][0] / sums[name][1]) for name in ('mlm_loss', 'nsp_loss'))

    def params(self, folder: pathlib.Path) -> Any:
        """Returns the parameters on the mesh; ignores `folder`."""
        del folder
        return self._state.params


class Theirs:
    """transformers' BertForPreTraining with torch's AdamW, clipping, and transformers' linear schedule.

    Args:
      source: A Hugging Face directory. Its config sets the dropout rates.
      setup: The setup of the bertjax side, which defines the tree of `params`.
      settings: The settings of a pre-training in one phase with adamw.
      steps: The number of steps of the run.
      mode: A name in MODES: the attention implementation or torch.compile, with bfloat16 by autocast.
      seed: The seed of dropout.

    Raises:
      NotImplementedError: The settings have another optimizer or schedule, or accumulate gradients.
    """

    def __init__(self, source: pathlib.Path, setup: Setup, settings: Any, steps: int, mode: str, seed: int):
        (phase,), optimizer = settings.resolve_phases(steps), vars(settings.optimizer)
        if optimizer['name'] != 'adamw' or phase.schedule != 'linear' or phase.grad_accum_steps != 1:
            raise NotImplementedError('only adamw, a linear schedule and grad_accum_steps=1 are supported')
        kind, _, dtype = mode.partition('-')
        self._setup, self._autocast, self._clip = setup, dtype == 'bfloat16', optimizer['clip_norm']
        attention = 'eager' if kind == 'eager' else 'sdpa'
        self._model = transformers.BertForPreTraining.from_pretrained(source, attn_implementation=attention).train()
        self._run = torch.compile(self._model) if kind == 'compile' else self._model
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in self._model.named_parameters():
            groups[name.endswith('.bias') or name.endswith('LayerNorm.weight')].append(parameter)
        self._optimizer = torch.optim.AdamW(
            [{'params': groups[False]}, {'params': groups[True], 'weight_decay': 0.0}],
            phase.learning_rate,
            (optimizer['b1'], optimizer['b2']),
            optimizer['eps'],
            optimizer['weight_decay'],
        )
        warmup = round(phase.warmup_fraction * steps)
        self._schedule = transformers.get_linear_schedule_with_warmup(self._optimizer, warmup, steps)
        torch.manual_seed(seed)
        self._loss: Any = None

    def step(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """Runs one update on `rows`, which all have a pair label; ignores `first`."""
        del first
        inputs = {name: torch.from_numpy(x) for name, x in rows.items()}
        labels = torch.full(inputs['input_ids'].shape, -100)
        used = (inputs['masked_weights'] > 0).nonzero(as_tuple=True)
        labels[used[0], inputs['masked_positions'].long()[used]] = inputs['masked_ids'].long()[used]
        with torch.autocast('cpu', torch.bfloat16, enabled=self._autocast):
            self._loss = self._run(
                input_ids=inputs['input_ids'],
                token_type_ids=inputs['segment_ids'],
                attention_mask=inputs['attention_mask'],
                labels=labels,
                next_sentence_label=inputs['nsp_labels'].long(),
            ).loss
        self._loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()

    def wait(self) -> float:
        """Returns the loss of the last step, the sum of MLM and NSP."""
        return self._loss.item()

    def params(self, folder: pathlib.Path) -> Any:
        """Returns the parameters in bertjax's form on the mesh; writes the model to `folder`."""
        self._model.save_pretrained(folder)
        config = self._setup.module.config
        imported = load_pretraining_model(folder, scan_layers=config.scan_layers)
        if imported.missing or imported.unused:
            raise ValueError(f'not the same model: missing {imported.missing}, unused {imported.unused}')
        return put_params(imported.params, self._setup.state)


def both(
    phase: Phase, settings: Any, tokenizer: Tokenizer, folder: pathlib.Path, *, mode: str, seed: int
) -> dict[str, Ours | Theirs]:
    """Returns {'bertjax': …, 'transformers': …} with equal random weights; writes the model to `folder`."""
    setup = phase.setup
    with mesh_context(setup.mesh):
        state = setup.create(seed)
    export_huggingface(ExportContent(setup.module, jax.device_get(state.params), tokenizer), folder)
    theirs = Theirs(folder, setup, settings, phase.settings.last_step, mode, seed)
    return {'bertjax': Ours(phase, state), 'transformers': theirs}
