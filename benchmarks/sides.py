"""The two sides of benchmarks/quality.py: a pre-training of ours, and transformers' BertForPreTraining, step by step.

Both take the rows that our examples are made of, the batch size, schedule and optimiser of one phase, and each draws
its own dropout. A side's parameters go to the other's form by way of a Hugging Face directory.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
import transformers

from bertjax.convert.huggingface.save import TokenizerProtocol, export_huggingface
from bertjax.convert.load import load_pretraining_model
from bertjax.data.loader import global_arrays, make_numbered_batch
from bertjax.parallel.partition import batch_sharding, mesh_context
from bertjax.train.phase import Phase
from bertjax.train.setup import Setup
from bertjax.train.state import TrainState, put_params

MODES = ('eager', 'sdpa', 'eager-bfloat16', 'sdpa-bfloat16', 'compile', 'compile-bfloat16')


class Ours:
    """The step that a run takes, without its loop.

    Args:
      phase: with one member, whose learning rate and dropout are used.
      state: to begin with; donated.
    """

    def __init__(self, phase: Phase, state: TrainState):
        self._phase, self._state = phase, state
        self._step = phase.compile()
        self._step.prepare()
        self._metrics: Any = None

    def step(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """One update on `rows`, the examples from number `first` on."""
        mesh, count = self._phase.setup.mesh, self._phase.settings.batch_size
        arrays = global_arrays(rows, batch_sharding(mesh), count)
        self._state, self._metrics = self._step(
            self._state, make_numbered_batch(first, arrays, batch_sharding(mesh), count)
        )

    def wait(self) -> float:
        """Waits for the last step; its loss, MLM and NSP together."""
        sums = jax.device_get(self._metrics)['sums']
        return sum(float(sums[name][0] / sums[name][1]) for name in ('mlm_loss', 'nsp_loss'))

    def params(self, folder: pathlib.Path) -> Any:
        """On the mesh; `folder` is not needed."""
        del folder
        return self._state.params


class Theirs:
    """transformers' BertForPreTraining with torch's AdamW, clipping, and transformers' linear schedule.

    Args:
      source: a Hugging Face directory; its config says the dropout.
      setup: of our side: the tree that `params` are given in.
      settings: of a pre-training in one phase with adamw, from which the recipe is taken.
      steps: of the run.
      mode: of MODES: what computes attention, or torch.compile; bfloat16 by autocast.
      seed: of dropout.
    """

    def __init__(self, source: pathlib.Path, setup: Setup, settings: Any, steps: int, mode: str, seed: int):
        (phase,), optimizer = settings.resolve_phases(steps), vars(settings.optimizer)
        if optimizer['name'] != 'adamw' or phase.schedule != 'linear' or phase.grad_accum_steps != 1:
            raise NotImplementedError('this side has adamw, a linear schedule, and batches in one part')
        kind, _, dtype = mode.partition('-')
        self._setup, self._autocast, self._clip = setup, dtype == 'bfloat16', optimizer['clip_norm']
        attention = 'eager' if kind == 'eager' else 'sdpa'
        self._model = transformers.BertForPreTraining.from_pretrained(source, attn_implementation=attention).train()
        self._called = torch.compile(self._model) if kind == 'compile' else self._model
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
        """One update on `rows`, every one of which has a pair label; `first` does not matter."""
        del first
        given = {name: torch.from_numpy(x) for name, x in rows.items()}
        labels = torch.full(given['input_ids'].shape, -100)
        places = (given['masked_weights'] > 0).nonzero(as_tuple=True)
        labels[places[0], given['masked_positions'].long()[places]] = given['masked_ids'].long()[places]
        with torch.autocast('cpu', torch.bfloat16, enabled=self._autocast):
            self._loss = self._called(
                input_ids=given['input_ids'],
                token_type_ids=given['segment_ids'],
                attention_mask=given['attention_mask'],
                labels=labels,
                next_sentence_label=given['nsp_labels'].long(),
            ).loss
        self._loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()

    def wait(self) -> float:
        """The last step's loss, MLM and NSP together."""
        return self._loss.item()

    def params(self, folder: pathlib.Path) -> Any:
        """As ours, on the mesh, by way of `folder`."""
        self._model.save_pretrained(folder)
        config = self._setup.module.config
        imported = load_pretraining_model(folder, scan_layers=config.scan_layers)
        if imported.missing or imported.unused:
            raise ValueError(f'not the same model: missing {imported.missing}, unused {imported.unused}')
        return put_params(imported.params, self._setup.state)


def both(
    phase: Phase, settings: Any, tokenizer: TokenizerProtocol, folder: pathlib.Path, *, mode: str, seed: int
) -> dict[str, Ours | Theirs]:
    """'bertjax' and 'transformers' with equal weights, drawn with `seed`; these stay in `folder`, as Hugging Face's."""
    setup = phase.setup
    with mesh_context(setup.mesh):
        state = setup.create(seed)
    export_huggingface(jax.device_get(state.params), setup.module.config, tokenizer, folder, card={})
    theirs = Theirs(folder, setup, settings, phase.settings.last_step, mode, seed)
    return {'bertjax': Ours(phase, state), 'transformers': theirs}
