"""The families of models in transformers that bertjax reads and writes."""

import dataclasses
from typing import Any

from bertjax.convert.huggingface.family import BLOCK, Family
from bertjax.convert.huggingface.modernbert import MODERNBERT
from bertjax.model.config import BertConfig

SEGMENTS = 'bert.embeddings.token_type_embeddings.weight'
POSITIONS = 'bert.embeddings.position_embeddings.weight'
_DISTIL = 'distilbert.transformer.layer.{i}'

BERT = Family('bert', 'Bert', 'bert')
# Source: models/roberta in transformers. The first token has the position (padding id + 1), as in fairseq. The first
# layer of the classifier is equivalent to BERT's pooler.
ROBERTA = Family(
    'roberta',
    'Roberta',
    'roberta',
    tensors=(
        ('cls.predictions.transform.dense', 'lm_head.dense'),
        ('cls.predictions.transform.LayerNorm', 'lm_head.layer_norm'),
        ('cls.predictions', 'lm_head'),
        ('bert', 'roberta'),
    ),
    classifier=(('bert.pooler.dense', 'classifier.dense'), ('classifier', 'classifier.out_proj')),
    activation='gelu',
    offset=True,
    one_segment=True,
)
XLM_ROBERTA = dataclasses.replace(ROBERTA, name='xlm-roberta', classes='XLMRoberta')
CAMEMBERT = dataclasses.replace(ROBERTA, name='camembert', classes='Camembert')
# Source: models/distilbert in transformers.
DISTILBERT = Family(
    'distilbert',
    'DistilBert',
    'distilbert',
    tensors=(
        (f'{BLOCK}.attention.self.query', f'{_DISTIL}.attention.q_lin'),
        (f'{BLOCK}.attention.self.key', f'{_DISTIL}.attention.k_lin'),
        (f'{BLOCK}.attention.self.value', f'{_DISTIL}.attention.v_lin'),
        (f'{BLOCK}.attention.output.dense', f'{_DISTIL}.attention.out_lin'),
        (f'{BLOCK}.attention.output.LayerNorm', f'{_DISTIL}.sa_layer_norm'),
        (f'{BLOCK}.intermediate.dense', f'{_DISTIL}.ffn.lin1'),
        (f'{BLOCK}.output.dense', f'{_DISTIL}.ffn.lin2'),
        (f'{BLOCK}.output.LayerNorm', f'{_DISTIL}.output_layer_norm'),
        ('bert.pooler.dense', 'pre_classifier'),
        ('cls.predictions.transform.dense', 'vocab_transform'),
        ('cls.predictions.transform.LayerNorm', 'vocab_layer_norm'),
        ('cls.predictions.decoder', 'vocab_projector'),
        ('cls.predictions', 'vocab_projector'),
        ('bert', 'distilbert'),
    ),
    keys=(
        ('hidden_size', 'dim'),
        ('num_hidden_layers', 'n_layers'),
        ('num_attention_heads', 'n_heads'),
        ('intermediate_size', 'hidden_dim'),
        ('hidden_dropout_prob', 'dropout'),
        ('attention_probs_dropout_prob', 'attention_dropout'),
        ('hidden_act', 'activation'),
    ),
    fixed=(
        ('type_vocab_size', 0),
        ('layer_norm_eps', 1e-12),
        ('pooler_act', 'relu'),
        ('is_decoder', False),
        ('position_embedding_type', 'absolute'),
        ('use_cache', False),
    ),
)
FAMILIES = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, MODERNBERT)


def find_family(model_type: Any) -> Family:
    """Returns the family of a `model_type`, or BERT for unknown types, which later checks reject."""
    return next((family for family in FAMILIES if family.name == model_type), BERT)


def choose_family(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """Returns the family in which a model is exported.

    A model with features that BERT lacks is a ModernBERT. Else, a model without a segment embedding is a DistilBERT.
    Else, a model is a RoBERTa if it has one segment, two `separators` between the texts of a pair, the erf form of
    GELU, bidirectional attention, and no pair head (`pairs` is False). All other models are BERTs.
    """
    if config.modern_fields:
        return MODERNBERT
    if not config.num_segments:
        return DISTILBERT
    fits_roberta = config.mlp == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT
