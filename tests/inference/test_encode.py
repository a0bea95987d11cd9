"""Tests the choice of an encoding for a model."""

import types

import pytest

from bertjax.errors import UserError
from bertjax.inference.encode import resolve_encoding
from bertjax.tasks.late_interaction.task import LateInteractionTask
from bertjax.tasks.reranking.task import RerankTask


@pytest.mark.parametrize('kind', [LateInteractionTask, RerankTask])
def test_models_that_only_score_pairs_need_a_pooling(kind: type):
    config = types.SimpleNamespace(width=8, num_layers=2)
    model = types.SimpleNamespace(task=kind('', 32), where='model', sentence_modules=None, config=config)
    with pytest.raises(UserError, match=r'model: found a model for .*, expected a model that embeds texts; use rerank'):
        resolve_encoding(model, pool='auto', normalize=None)
    assert resolve_encoding(model, pool='mean', normalize=None).pool == 'mean'
