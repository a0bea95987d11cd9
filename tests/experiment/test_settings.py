"""What depends on several keys, or on how much there is to train on."""

import pytest

from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import FinetuningSettings, finetuning_settings
from bertjax.recipe import finetuning_config


def finetuning(**keys) -> FinetuningSettings:
    config = finetuning_config('glue', task='rte')
    for key, value in keys.items():
        config[key] = value
    return finetuning_settings(config)


@pytest.mark.parametrize(
    ('keys', 'steps'),
    [({}, 120), ({'steps': 7}, 7), ({'steps': '0.5epochs'}, 20), ({'steps': '0'}, 120), ({'steps': '0epochs'}, 120)],
)
def test_the_length_of_a_fine_tuning(keys: dict, steps: int):
    assert finetuning(**keys).total_steps(40) == steps


@pytest.mark.parametrize('keys', [{'steps': '0.01epochs'}, {'epochs': 0.01}])
def test_a_length_that_rounds_to_nothing(keys: dict):
    ((key, _),) = keys.items()
    with pytest.raises(
        UserError, match=f'config.{key}: found 0.01 ?epochs, with 40 batches an epoch, expected at least'
    ):
        finetuning(**keys).total_steps(40)


@pytest.mark.parametrize('never', [0, '0', '0%', '0 epochs'])
def test_patience_without_evaluations(never: int | str):
    with pytest.raises(UserError, match=r'config.patience: found 2 with config.eval_every='):
        finetuning(patience=2, eval_every=never).check()
