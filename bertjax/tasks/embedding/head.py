"""The model of embeddings: the encoder, a pooling, and Dense modules if config.init has them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.convert.heads import Head
from bertjax.convert.huggingface.dense import ACTIVATIONS, DenseConfig
from bertjax.convert.huggingface.sentence_transformers import SentenceModules
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.heads import BertForTask, flatten_choices
from bertjax.model.layers import Projection
from bertjax.model.pooling import pool_tokens
from bertjax.tasks.embedding.losses import normalize


class DenseModules(nn.Module):
    """The Dense modules of sentence-transformers, applied one after the other."""

    config: BertConfig
    dense: Sequence[DenseConfig]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps the pooled vectors, float32 [B, D], to float32 [B, D']."""
        for i, layer in enumerate(self.dense):
            x = normalize(x) if layer.normalize_input else x
            axes = (None if i else 'embed',), ('classes',), ('classes',)  # only the width of the encoder is sharded
            project = Projection(self.config, (layer.width,), *axes, use_bias=layer.use_bias, name=f'dense_{i}')
            x = ACTIVATIONS[layer.activation](project(x).astype(jnp.float32))
        return x


class BertForEmbedding(BertForTask):
    """Computes a vector for each text.

    Attributes:
      pool: The pooling, one of `model.pooling.SENTENCE_POOL`.
      dense: The Dense modules, which are applied to the pooled vector.
      normalize: Whether the module itself scales the vectors to length 1. Only exports need this and `truncate_dim`,
        because losses and `encode` can scale and truncate the vectors outside the module.
      truncate_dim: The number of leading dimensions to keep of the scaled vectors; 0 for all.
    """

    outputs: int = 0
    pool: str = 'mean'
    dense: Sequence[DenseConfig] = ()
    normalize: bool = False
    truncate_dim: int = 0

    def setup(self):
        self.encoder = BertEncoder(self.config, self.packing)
        self.head = DenseModules(self.config, self.dense)

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps ids, segments and mask, int32 [B, S] or [B, C, S], to `embeddings`, float32 [B, D'] or [B, C, D']."""
        shape, (ids, segments, mask), dropout = flatten_choices(inputs, dropout)
        hidden = self._hidden(ids, segments, mask, dropout, first_only=self.pool == 'cls')
        pooled = pool_tokens(hidden.astype(jnp.float32), mask, self.pool)
        pooled = jnp.where(mask[:, :1] > 0, pooled, 0.0)  # for an absent text, max pooling gives -inf
        vectors = self.head(pooled)
        if self.normalize:
            vectors /= jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        vectors = vectors[:, : self.truncate_dim or None]
        return {'embeddings': vectors.reshape(*shape, vectors.shape[-1])}


LAYER_NUMBERS = {'last': (-1,), 'mean_last_four': (-4, -3, -2, -1)}  # {`layers` of the module: the layers to average}
EMBEDDING = Head(
    BertForEmbedding,
    architecture='BertModel',
    pipeline='sentence-similarity',
    id2label=False,
    layers=tuple(LAYER_NUMBERS),
    sentence_class='SentenceTransformer',
)


def exported_module(config: BertConfig, modules: SentenceModules | None) -> BertForEmbedding | None:
    """Builds the module whose `embeddings` are the vectors of `encode`; None if `modules` is None or unsupported."""
    layers = next((name for name, numbers in LAYER_NUMBERS.items() if modules and numbers == modules.layers), None)
    if layers is None or modules.refusal or modules.dense_layers or modules.weights:
        return None
    if modules.prompt and not modules.include_prompt:
        return None  # the module cannot tell the tokens of the prompt from the others
    names = ('pool', 'dense', 'normalize', 'truncate_dim')
    return BertForEmbedding(config, layers=layers, **{name: getattr(modules, name) for name in names})
