"""Tests the FLOPs of a row, from which the loop computes `mfu`."""

import types

import pytest

from bertjax.config.recipes import finetuning_config
from bertjax.finetune.run import Finetuning
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_model import TaskModel
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.training.vmapped_runs import VmappedRun

ENCODER = BertConfig(vocab_size=60, num_layers=1, width=8, num_heads=1, mlp_dim=16, max_positions=16)
TEACHER_FLOPS = 1000.0


def flops(choices: int, members: int = 1, teacher: bool = False) -> float:
    split = types.SimpleNamespace(features=types.SimpleNamespace(choices=choices))
    examples = types.SimpleNamespace(mean_length=15.6, abstract_batches=dict)
    settings = finetuning_settings(finetuning_config('glue', task='rte'))
    data = types.SimpleNamespace(encoder=ENCODER, split=lambda name: split, eval_splits=[])
    task_model = types.SimpleNamespace(settings=settings, data=data, layout=None, setup=None)
    if not teacher:
        return TaskModel.phase(task_model, [VmappedRun(examples, 1e-4, 0)] * members, 10).flops_per_row
    task_model.phase = lambda *args, **keys: TaskModel.phase(task_model, *args, **keys)
    distillation = types.SimpleNamespace(teacher=tuple, forward_flops=lambda length, predictions: TEACHER_FLOPS)
    run = types.SimpleNamespace(
        settings=settings, data=data, task_model=task_model, _examples=examples, _train=split,
        _distillation=distillation, _setups=[None], _rates=[1e-4], _stage_ends=[10],
    )  # fmt: skip
    return Finetuning.phases(run)[0].flops_per_row


@pytest.mark.parametrize('choices', [1, 4])
def test_a_row_has_the_flops_of_all_its_sequences(choices: int):
    assert flops(choices) == choices * train_flops_per_sequence(ENCODER, 16, 0)
    assert flops(choices, members=3) == 3 * flops(choices)
    assert flops(choices, teacher=True) == choices * (train_flops_per_sequence(ENCODER, 16, 0) + TEACHER_FLOPS)
