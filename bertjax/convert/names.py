"""Converts parameters between our names and layouts and Hugging Face's.

One table defines both directions of the conversion. In this module, "ours" means bertjax, and "theirs" means
transformers.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bertjax.model.config import BertConfig

LAYERS = 'encoder/layers/'  # A row of TABLE with this prefix is one tensor in each block.
# The folders of Dense modules of sentence-transformers. A tensor NAME in such a folder has the name FOLDER/NAME.
DENSE_FOLDERS = tuple(f'{i}_Dense' for i in range(2, 10))


@dataclasses.dataclass(frozen=True)
class TensorKind:
    """The conversion between the layouts of a tensor in bertjax and transformers.

    Attributes:
      to_theirs: The function (our array, vocabulary size without padding) -> their array.
      to_ours: The function (their array, our shape) -> our array.
    """

    to_theirs: Callable[[np.ndarray, int], np.ndarray]
    to_ours: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


def _kernel(in_dims: int) -> TensorKind:
    """Returns the conversion of a kernel: [in..., out...] in bertjax, and [out, in] with flattened axes in PyTorch."""

    def to_theirs(x: np.ndarray, vocab_size: int) -> np.ndarray:
        return x.reshape(int(np.prod(x.shape[:in_dims])), -1).T

    return TensorKind(to_theirs, lambda x, shape: x.T.reshape(shape))


def _pad_rows(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.pad(x, [(0, shape[0] - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


KERNEL = _kernel(1)
KERNEL_FROM_HEADS = _kernel(2)
SAME = TensorKind(lambda x, vocab_size: x, lambda x, shape: x)
FLAT = TensorKind(lambda x, vocab_size: x.reshape(-1), lambda x, shape: x.reshape(shape))
ROWS = TensorKind(lambda x, vocab_size: x[:vocab_size], _pad_rows)  # One row per piece; padding rows are dropped.


def _pair(
    ours: str, theirs: str, kernel: TensorKind = KERNEL, bias: TensorKind = SAME
) -> list[tuple[str, str, TensorKind]]:
    return [(f'{ours}/kernel', f'{theirs}.weight', kernel), (f'{ours}/bias', f'{theirs}.bias', bias)]


def _norm(ours: str, theirs: str) -> list[tuple[str, str, TensorKind]]:
    return [(f'{ours}/scale', f'{theirs}.weight', SAME), (f'{ours}/bias', f'{theirs}.bias', SAME)]


_BLOCK = 'bert.encoder.layer.{i}.'

# (our path, Hugging Face's name, kind). BERT has no gate, no norms of queries and keys, and no final norm. We chose the
# names of these tensors, and convert/huggingface/modernbert.py maps the gate and the final norm to ModernBERT's names.
TABLE: tuple[tuple[str, str, TensorKind], ...] = (
    ('encoder/embeddings/token/embedding', 'bert.embeddings.word_embeddings.weight', ROWS),
    ('encoder/embeddings/position/embedding', 'bert.embeddings.position_embeddings.weight', SAME),
    ('encoder/embeddings/segment/embedding', 'bert.embeddings.token_type_embeddings.weight', SAME),
    *_norm('encoder/embeddings/norm', 'bert.embeddings.LayerNorm'),
    *_pair(f'{LAYERS}attention/query', f'{_BLOCK}attention.self.query', KERNEL, FLAT),
    *_pair(f'{LAYERS}attention/key', f'{_BLOCK}attention.self.key', KERNEL, FLAT),
    *_pair(f'{LAYERS}attention/value', f'{_BLOCK}attention.self.value', KERNEL, FLAT),
    *_norm(f'{LAYERS}attention/query_norm', f'{_BLOCK}attention.self.query_norm'),
    *_norm(f'{LAYERS}attention/key_norm', f'{_BLOCK}attention.self.key_norm'),
    *_pair(f'{LAYERS}attention/output', f'{_BLOCK}attention.output.dense', KERNEL_FROM_HEADS),
    *_norm(f'{LAYERS}attention_norm', f'{_BLOCK}attention.output.LayerNorm'),
    *_pair(f'{LAYERS}mlp/gate', f'{_BLOCK}intermediate.gate'),
    *_pair(f'{LAYERS}mlp/up', f'{_BLOCK}intermediate.dense'),
    *_pair(f'{LAYERS}mlp/down', f'{_BLOCK}output.dense'),
    *_norm(f'{LAYERS}mlp_norm', f'{_BLOCK}output.LayerNorm'),
    *_norm('encoder/final_norm', 'bert.final_norm'),
    *_pair('pooler', 'bert.pooler.dense'),
    # The pooler 'transform' of a task's model starts from the MLM head. No model has both parts.
    *_pair('pooler/dense', 'cls.predictions.transform.dense'),
    *_norm('pooler/norm', 'cls.predictions.transform.LayerNorm'),
    *_pair('mlm/dense', 'cls.predictions.transform.dense'),
    *_norm('mlm/norm', 'cls.predictions.transform.LayerNorm'),
    ('mlm/decoder/embedding', 'cls.predictions.decoder.weight', ROWS),
    ('mlm/bias', 'cls.predictions.bias', ROWS),
    *_pair('nsp', 'cls.seq_relationship'),
    *_pair('head', '{head}'),  # The head of a task's model. {head} is Head.projection, see heads.py.
    *(row for i, folder in enumerate(DENSE_FOLDERS) for row in _pair(f'head/dense_{i}', f'{folder}/linear')),
)


_TABLE_PATHS = {path for path, _, _ in TABLE}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The names and layouts of one tensor.

    Attributes:
      ours: The path in bertjax, with stacked layers.
      layer: The index of the block that has the tensor; None for tensors outside of blocks.
      theirs: The name in transformers.
      kind: The conversion between the layouts.
    """

    ours: str
    layer: int | None
    theirs: str
    kind: TensorKind

    def their_shape(self, shape: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """Returns the shape of their tensor. `shape` is the shape of our tensor, without an axis of layers."""
        return self.kind.to_theirs(np.broadcast_to(np.float32(0), shape), vocab_size).shape


def entries(
    config: BertConfig, ours: Mapping[str, object], head: str = '', *, keep_unnamed: bool = True
) -> Iterator[Entry]:
    """Yields an entry for each tensor of a model.

    If the model does not use the attention norm of the first block, there is no entry for it.

    Args:
      config: The config of the model.
      ours: A mapping whose keys are our paths.
      head: The name of a task's head in transformers (Head.projection).
      keep_unnamed: Whether paths without a name in transformers, such as a BiLSTM's, become names with dots.

    Raises:
      KeyError: A path has no name in transformers, and `keep_unnamed` is False. An export would lose its tensor.
    """
    unnamed = sorted(set(ours) - _TABLE_PATHS)
    if unnamed and not keep_unnamed:
        raise KeyError(f'convert/names.py has no name for {unnamed}')
    for path, theirs, kind in TABLE:
        if path not in ours:
            continue
        if path.startswith(LAYERS):
            unused = 1 if path.startswith(f'{LAYERS}attention_norm/') and not config.first_attention_norm else 0
            for i in range(unused, config.num_layers):
                yield Entry(path, i, theirs.format(i=i), kind)
        else:
            yield Entry(path, None, theirs.format(head=head or 'head'), kind)
    for path in unnamed:
        yield Entry(path, None, path.replace('/', '.'), SAME)


def to_huggingface(
    params: dict[str, np.ndarray], config: BertConfig, head: str = '', *, keep_unnamed: bool = False
) -> dict[str, np.ndarray]:
    """Converts our arrays to contiguous tensors of transformers.

    Args:
      params: Our arrays by flat path, with stacked layers. Converted arrays are removed from the dictionary, because
        two copies of a large model may not fit in memory.
      config: The config of the model. Rows beyond its `vocab_size` are padding and are dropped.
      head, keep_unnamed: See `entries`.

    Raises:
      KeyError: See `entries`.
    """
    all_entries = list(entries(config, params, head, keep_unnamed=keep_unnamed))
    tensors = {}
    for path, group in itertools.groupby(all_entries, key=lambda entry: entry.ours):
        x = params.pop(path)
        for entry in group:
            part = x if entry.layer is None else x[entry.layer]
            tensors[entry.theirs] = np.ascontiguousarray(entry.kind.to_theirs(part, config.vocab_size))
    return tensors
