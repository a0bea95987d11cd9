"""The families of models in transformers that bertjax reads and writes."""

from typing import Any

from bertjax.convert.huggingface.family import BLOCK, Family
from bertjax.convert.huggingface.modernbert import MODERNBERT
from bertjax.model.config import BertConfig

POSITIONS = 'bert.embeddings.position_embeddings.weight'
_DISTIL = 'distilbert.transformer.layer.{i}'

BERT = Family('bert', 'Bert', 'bert')
# transformers: models/roberta. Positions count from the padding's id + 1 (fairseq's convention). The classifier has an
# equivalent layer instead of the pooler.
ROBERTA = Family(
    'roberta',
    'Roberta',
    'roberta',
    read_as_well={'xlm-roberta': 'XLMRoberta', 'camembert': 'Camembert'},
    tensors=(
        ('cls.predictions.transform.dense', 'lm_head.dense'),
        ('cls.predictions.transform.LayerNorm', 'lm_head.layer_norm'),
        ('cls.predictions', 'lm_head'),
        ('bert', 'roberta'),
    ),
    classifier=(('bert.pooler.dense', 'classifier.dense'), ('classifier', 'classifier.out_proj')),
    activation='gelu',
    offset=True,
)
# transformers: models/distilbert.
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
FAMILIES = (BERT, ROBERTA, DISTILBERT, MODERNBERT)


def find_family(model_type: Any) -> Family:
    """Returns the family of a config.json; BERT for unknown ones, which later checks reject."""
    return next((f for f in FAMILIES if model_type in (f.name, *f.read_as_well)), BERT)


def choose_family(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """Returns the family for the export of a model: BERT, unless the model has the form of another family.

    A model with choices that BERT lacks is a ModernBERT. One without segment embedding is a DistilBERT. One with a
    single segment, two separators between the texts of a pair, the erf form of gelu, bidirectional attention and no
    pair head is a RoBERTa.

    Args:
      config: The config of the model.
      separators: The tokenizer's number of separators.
      pairs: Whether the model has a pair head (NSP).
    """
    if config.modern_fields:
        return MODERNBERT
    if not config.num_segments:
        return DISTILBERT
    fits_roberta = config.mlp == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT
