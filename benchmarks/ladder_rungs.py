"""The changes that benchmarks/ladder.py measures, from BERT's recipe to that of configs/budget.py."""

import dataclasses
from typing import Any

from bertjax.pretrain.budget_choice import SIZES, gated_width

Keys = dict[str, Any]

# BERT's recipe (arXiv 1810.04805) for a model that trains in minutes: 3 layers of width 192.
BERT: Keys = {
    'vocab.size': 4096, 'seq_len': 64, 'max_predictions': 10, 'batch_size': 64, 'learning_rate': 1e-3,
    'warmup_fraction': 0.1, 'corpus_options.heldout': 0.02, 'model.num_layers': 3, 'model.width': 192,
    'model.num_heads': 3, 'model.mlp_dim': 768, 'model.dropout': 0.1, 'model.attention_dropout': 0.1,
    'model.max_positions': 256, 'model.scan_layers': False, 'export_formats': 'orbax',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rung:
    """One change: its name, its keys, and whether the rungs above keep it."""

    name: str
    keys: Keys
    kept: bool = True
    peer: str = ''  # the model that transformers' Trainer trains in place of bertjax


def size_keys(layers: int, width: int, heads: int) -> Keys:
    """Returns the keys of a model size."""
    return {
        'model.num_layers': layers, 'model.width': width, 'model.num_heads': heads,
        'model.mlp_dim': gated_width(width),
    }  # fmt: skip


_PACKED_SENTENCES: Keys = {'pairs.mode': 'sentences', 'packing': True}
_CAUSAL_AND_SHIFTED: Keys = {'masking.causal_share': 0.25, 'model.shifted_predictions': True}
_ALL_THREE = _PACKED_SENTENCES | _CAUSAL_AND_SHIFTED
_LARGE_BATCH: Keys = {
    'vocab.size': 8192, 'batch_size': 256, 'grad_accum_steps': 8, 'learning_rate': 3e-2, 'model.qk_norm': True,
}  # fmt: skip

LADDER = (
    Rung('bert', {}),
    Rung('no dropout', {'model.dropout': 0.0, 'model.attention_dropout': 0.0}),
    Rung('no next sentence', {'pairs.mode': 'full_sentences', 'model.num_segments': 0}),
    Rung('pre-norm', {'model.pre_norm': True, 'model.first_attention_norm': False}),
    Rung('rope', {'model.position': 'rope'}),
    Rung('geglu', {'model.mlp': 'geglu', 'model.mlp_dim': 512}),
    Rung('no biases', {'model.projection_bias': False, 'model.norm_bias': False}),
    Rung('qk-norm', {'model.qk_norm': True}, kept=False),
    Rung('zero init', {'model.init': 'zero_output'}),
    Rung('adam 3e-3', {'learning_rate': 3e-3, 'optimizer.b2': 0.98}),
    Rung('stable adamw', {'optimizer.name': 'stable_adamw'}, kept=False),
    Rung('muon', {'optimizer.name': 'muon', 'learning_rate': 2e-2}),
    Rung('masks 40 %', {'masking.rate': 0.4, 'max_predictions': 26}),
    # The next two have as many steps as 'masks 40 %'.
    Rung('adam with masks 40 %', {'optimizer.name': 'bert_adam', 'learning_rate': 3e-3}, kept=False),
    Rung('[MASK] only', {'masking.mask': 1.0, 'masking.random': 0.0}, kept=False),
    Rung('bfloat16', {'model.dtype': 'bfloat16'}),
    # Side steps from the recipe up to here.
    Rung('muon 1e-2', {'learning_rate': 1e-2}, kept=False),
    Rung('muon 4e-2', {'learning_rate': 4e-2}, kept=False),
    Rung('adam ratio 0.5', {'optimizer.adam_lr_ratio': 0.5}, kept=False),
    Rung('masks 30 %', {'masking.rate': 0.3, 'max_predictions': 20}, kept=False),
    Rung('masks 50 %', {'masking.rate': 0.5, 'max_predictions': 32}, kept=False),
    Rung('masks 40 to 15 %', {'masking.rate': 0.4, 'masking.final_rate': 0.15}, kept=False),
    Rung('masked and causal', {'masking.causal_share': 0.25}, kept=False),
    Rung('shifted', {'model.shifted_predictions': True}, kept=False),
    Rung('masked and causal, shifted', _CAUSAL_AND_SHIFTED, kept=False),
    Rung(
        'masked and causal, shifted, masks 40 to 15 %', _CAUSAL_AND_SHIFTED | {'masking.final_rate': 0.15}, kept=False
    ),
    Rung('sentences', {'pairs.mode': 'sentences'}, kept=False),
    Rung('packed sentences', _PACKED_SENTENCES, kept=False),
    # Packed sentences, causal examples and shifted predictions together.
    Rung('all three', _ALL_THREE, kept=False),
    Rung('all three at 4 x 256', _ALL_THREE | size_keys(*SIZES[2]), kept=False),
    Rung('all three at 6 x 320, 256 rows', _ALL_THREE | size_keys(*SIZES[3]) | _LARGE_BATCH, kept=False),
    Rung('rows of 32', {'seq_len': 32, 'batch_size': 128, 'max_predictions': 13}, kept=False),
    Rung('rows of 128', {'seq_len': 128, 'batch_size': 32, 'max_predictions': 52}, kept=False),
    Rung('rows of 256', {'seq_len': 256, 'batch_size': 16, 'max_predictions': 103}, kept=False),
    Rung('batch of 16', {'batch_size': 16}, kept=False),
    Rung('batch of 32', {'batch_size': 32}, kept=False),
    Rung('batch of 128', {'batch_size': 128}, kept=False),
    Rung('vocabulary of 8192', {'vocab.size': 8192}, kept=False),
    Rung('vocabulary of 16384', {'vocab.size': 16384}, kept=False),
    Rung('wsd', {'schedule.name': 'wsd', 'schedule.decay_fraction': 0.3, 'schedule.decay': 'linear'}, kept=False),
    Rung('average of weights', {'ema_decay': 0.995}, kept=False),
    # The alternatives to bertjax, see benchmarks/peers/masked_lm.py.
    Rung('transformers, BERT', {}, kept=False, peer='bert'),
    Rung('transformers, ModernBERT', {}, kept=False, peer='modernbert'),
    *(Rung(f'{size[0]} x {size[1]}', size_keys(*size), kept=False) for size in SIZES[:5]),
    # Last, because the rungs above were measured with a weight decay of 0.01. With 0.01, the weights grow until a
    # fine-tuning with AdamW hardly changes them.
    Rung('weight decay 0.1', {'optimizer.weight_decay': 0.1}),
    Rung('weight decay 0.03', {'optimizer.weight_decay': 0.03}, kept=False),
    # For tasks on pairs of texts.
    Rung(
        'next sentence', {'pairs.mode': 'nsp', 'model.num_segments': 2, 'masking.final_rate': 0.15}, kept=False
    ),
    # The next two have as many steps as 'weight decay 0.1'. Their `mlm_loss` is on rows like those of the training. The
    # results also have the loss on rows of whole sentences. To measure this loss, start a pre-training with
    # pairs.mode=full_sentences from the exported model, and read the loss at step 0. Packed sentences are not better on
    # BLiMP.
    Rung('packed sentences with decay 0.1', _PACKED_SENTENCES, kept=False),
    # With whole sentences, 22 % of the positions in rows of 64 are padding.
    Rung('full rows', {'pairs.mode': 'full_rows'}),
)  # fmt: skip


def rung_keys(rung: Rung) -> Keys:
    """Returns the keys of a rung and of the kept rungs below it. The keys of a peer are BERT's."""
    if rung.peer:
        return BERT
    below = LADDER[: LADDER.index(rung)]
    return BERT | {name: value for kept in below if kept.kept for name, value in kept.keys.items()} | rung.keys
