"""A model as a pure function, for custom training loops and programs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from bertjax.data.features import INPUTS
from bertjax.model.bert import BertForPreTraining
from bertjax.model.dropout import Dropout
from bertjax.model.row_packing import BatchLayout

Apply = Callable[..., dict[str, jax.Array]]


def make_apply(module: nn.Module) -> Apply:
    """Makes the function (params, batch, rngs=None) -> {output name: array}; see `api.Bert.apply`."""
    is_task_model = not isinstance(module, BertForPreTraining)

    def apply(
        params: Any, batch: Mapping[str, jax.Array], rngs: Mapping[str, jax.Array] | None = None
    ) -> dict[str, jax.Array]:
        inputs = [batch[name] for name in INPUTS]
        variables = {'params': params}
        dropout = Dropout.from_key(rngs['dropout'], len(inputs[0])) if rngs else None
        if is_task_model:
            if unread := {'sequence_ids', 'causal'} & batch.keys():
                raise ValueError(f'a model for a task does not read {sorted(unread)}')
            return module.apply(variables, *inputs, dropout=dropout)
        return module.apply(variables, inputs, batch, dropout, method=_pretraining_outputs)

    return apply


def _pretraining_outputs(
    bert: BertForPreTraining, inputs: list[jax.Array], batch: Mapping[str, jax.Array], dropout: Dropout | None
) -> dict[str, jax.Array]:
    layout, causal = None, batch.get('causal')
    if 'sequence_ids' in batch:
        layout = BatchLayout(batch['sequence_ids'], batch['position_ids'], batch['cls_positions'])
    hidden, _ = bert.encoder(*inputs, dropout=dropout, layout=layout, causal=causal)  # [B, S, D]
    outputs = {'hidden': hidden}
    if bert.config.nsp:
        outputs['pooled'] = bert.pool(hidden, layout)
        outputs['nsp_logits'] = bert.nsp(outputs['pooled'])
    if 'masked_positions' in batch:
        logits = bert.predict_tokens(hidden, batch['masked_positions'], causal)
        outputs['mlm_logits'] = logits[..., : bert.config.vocab_size]
    return outputs
