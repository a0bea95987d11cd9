"""Converts the names and the layouts of parameters from bertjax to transformers and back.

In this module, "ours" means bertjax, and "theirs" means transformers.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from bertjax.convert.trees import HostParams
from bertjax.model.config import BertConfig

LAYERS = 'encoder/layers/'  # A row of TABLE with this prefix is one module in each block.
# The folders of Dense modules of sentence-transformers. We call a tensor NAME in the folder FOLDER `FOLDER/NAME`.
DENSE_FOLDERS = tuple(f'{i}_Dense' for i in range(2, 10))
_BLOCK = 'bert.encoder.layer.{i}.'

# (our module, their module). Their BERT has no gate, no norms of queries and keys, and no final norm, so we chose the
# second name of these modules. convert/huggingface/families.py maps the gate and the final norm to ModernBERT's names.
TABLE: tuple[tuple[str, str], ...] = (
    ('encoder/embeddings/token', 'bert.embeddings.word_embeddings'),
    ('encoder/embeddings/position', 'bert.embeddings.position_embeddings'),
    ('encoder/embeddings/segment', 'bert.embeddings.token_type_embeddings'),
    ('encoder/embeddings/norm', 'bert.embeddings.LayerNorm'),
    (f'{LAYERS}attention/query', f'{_BLOCK}attention.self.query'),
    (f'{LAYERS}attention/key', f'{_BLOCK}attention.self.key'),
    (f'{LAYERS}attention/value', f'{_BLOCK}attention.self.value'),
    (f'{LAYERS}attention/query_norm', f'{_BLOCK}attention.self.query_norm'),
    (f'{LAYERS}attention/key_norm', f'{_BLOCK}attention.self.key_norm'),
    (f'{LAYERS}attention/output', f'{_BLOCK}attention.output.dense'),
    (f'{LAYERS}attention_norm', f'{_BLOCK}attention.output.LayerNorm'),
    (f'{LAYERS}mlp/gate', f'{_BLOCK}intermediate.gate'),
    (f'{LAYERS}mlp/up', f'{_BLOCK}intermediate.dense'),
    (f'{LAYERS}mlp/down', f'{_BLOCK}output.dense'),
    (f'{LAYERS}mlp_norm', f'{_BLOCK}output.LayerNorm'),
    ('encoder/final_norm', 'bert.final_norm'),
    ('pooler', 'bert.pooler.dense'),
    # The pooler 'transform' of a task's model is initialized from the MLM head. A model has only one of the two.
    ('pooler/dense', 'cls.predictions.transform.dense'),
    ('pooler/norm', 'cls.predictions.transform.LayerNorm'),
    ('mlm/dense', 'cls.predictions.transform.dense'),
    ('mlm/norm', 'cls.predictions.transform.LayerNorm'),
    ('mlm/decoder', 'cls.predictions.decoder'),
    ('mlm', 'cls.predictions'),
    ('nsp', 'cls.seq_relationship'),
    ('head', '{head}'),  # The head of a task's model. {head} is Head.projection, see heads.py.
    *((f'head/dense_{i}', f'{folder}/linear') for i, folder in enumerate(DENSE_FOLDERS)),
)
# {name of a parameter in our modules: its name in their modules}
_PARAMETERS = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight', 'bias': 'bias'}
_NAMES = {f'{ours}/{x}': f'{theirs}.{y}' for ours, theirs in TABLE for x, y in _PARAMETERS.items()}
TOKEN_EMBEDDING = 'encoder/embeddings/token/embedding'
# Our arrays with a row for each piece of the vocabulary, followed by padding rows.
VOCABULARY = (TOKEN_EMBEDDING, 'mlm/decoder/embedding', 'mlm/bias')


@dataclasses.dataclass(frozen=True)
class Entry:
    """The two names of a tensor, and the conversion between its two layouts.

    In our layout, a kernel is [in..., out...] and a bias [out...]. In theirs, they are [out, in] and [out].

    Attributes:
      ours: The path in bertjax, with stacked layers.
      theirs: The name in transformers.
      layer: The index of the block that has the tensor; None for tensors outside of blocks.
    """

    ours: str
    theirs: str
    layer: int | None = None

    def to_theirs(self, x: np.ndarray, vocab_size: int) -> np.ndarray:
        """Converts our array, without the axis of stacked layers. Padding rows, beyond `vocab_size`, are dropped."""
        if self.ours in VOCABULARY:
            return x[:vocab_size]
        if self.ours.endswith('/kernel'):
            in_dims = 2 if self.ours == f'{LAYERS}attention/output/kernel' else 1  # heads, and the width of a head
            return x.reshape(math.prod(x.shape[:in_dims]), -1).T
        return x.reshape(-1) if self.ours.endswith('/bias') else x

    def to_ours(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Converts their tensor to our layout. The result has our `shape`, but no axis of stacked layers."""
        if self.ours in VOCABULARY:
            return np.pad(x, [(0, shape[0] - x.shape[0])] + [(0, 0)] * (x.ndim - 1))
        return (x.T if self.ours.endswith('/kernel') else x).reshape(self._block_shape(shape))

    def their_shape(self, shape: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """Returns the shape of their tensor. `shape` is the shape of our array, with stacked layers."""
        return self.to_theirs(np.broadcast_to(np.float32(0), self._block_shape(shape)), vocab_size).shape

    def _block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layer is None else shape[1:]


def entries(config: BertConfig, ours: Mapping[str, object], head: str = '') -> Iterator[Entry]:
    """Yields an entry for each tensor of a model whose paths are the keys of `ours`.

    `head` is the name of a task's head in transformers (Head.projection). A path without a name in transformers, such
    as a BiLSTM's, is used as the name, with dots instead of slashes. The attention norm of the first block has no entry
    if the model does not use this norm.
    """
    for path, theirs in _NAMES.items():
        if path not in ours:
            continue
        if path.startswith(LAYERS):
            unused = 1 if path.startswith(f'{LAYERS}attention_norm/') and not config.first_attention_norm else 0
            for i in range(unused, config.num_layers):
                yield Entry(path, theirs.format(i=i), i)
        else:
            yield Entry(path, theirs.format(head=head or 'head'))
    for path in sorted(set(ours) - set(_NAMES)):
        yield Entry(path, path.replace('/', '.'))


def to_huggingface(params: Mapping, config: BertConfig, head: str = '') -> dict[str, np.ndarray]:
    """Converts parameters to contiguous float32 tensors of transformers, {name: tensor}. For `head`, see `entries`."""
    host = HostParams(params, config)
    return {
        entry.theirs: np.ascontiguousarray(entry.to_theirs(host.get(entry.ours, entry.layer), config.vocab_size))
        for entry in entries(config, host.shapes, head)
    }
