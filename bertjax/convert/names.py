"""The one table of our parameter names and Hugging Face's; both directions of the conversion come from it."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

LAYERS = 'encoder/layers/'  # an entry with this prefix stands for one tensor of every block


@dataclasses.dataclass(frozen=True)
class TensorKind:
    """How the layout of a tensor differs between the two programs.

    Attributes:
      give: our array and the number of pieces without padding -> theirs.
      take: their array and our shape -> ours.
    """

    give: Callable[[np.ndarray, int], np.ndarray]
    take: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


def _kernel(in_dims: int) -> TensorKind:
    """Ours is [in..., out...], PyTorch's [out, in], with the dimensions of each side flattened."""

    def give(x: np.ndarray, vocab_size: int) -> np.ndarray:
        return x.reshape(int(np.prod(x.shape[:in_dims])), -1).T

    return TensorKind(give, lambda x, shape: x.T.reshape(shape))


def _pad_rows(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.pad(x, [(0, shape[0] - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


KERNEL = _kernel(1)
KERNEL_FROM_HEADS = _kernel(2)
SAME = TensorKind(lambda x, vocab_size: x, lambda x, shape: x)
FLAT = TensorKind(lambda x, vocab_size: x.reshape(-1), lambda x, shape: x.reshape(shape))
ROWS = TensorKind(lambda x, vocab_size: x[:vocab_size], _pad_rows)  # a row per piece; padding is not exported


def _pair(
    ours: str, theirs: str, kernel: TensorKind = KERNEL, bias: TensorKind = SAME
) -> list[tuple[str, str, TensorKind]]:
    return [(f'{ours}/kernel', f'{theirs}.weight', kernel), (f'{ours}/bias', f'{theirs}.bias', bias)]


def _norm(ours: str, theirs: str) -> list[tuple[str, str, TensorKind]]:
    return [(f'{ours}/scale', f'{theirs}.weight', SAME), (f'{ours}/bias', f'{theirs}.bias', SAME)]


_BLOCK = 'bert.encoder.layer.{i}.'

# (our path, Hugging Face's name, kind)
TABLE: tuple[tuple[str, str, TensorKind], ...] = (
    ('encoder/embeddings/token/embedding', 'bert.embeddings.word_embeddings.weight', ROWS),
    ('encoder/embeddings/position/embedding', 'bert.embeddings.position_embeddings.weight', SAME),
    ('encoder/embeddings/segment/embedding', 'bert.embeddings.token_type_embeddings.weight', SAME),
    *_norm('encoder/embeddings/norm', 'bert.embeddings.LayerNorm'),
    *_pair(f'{LAYERS}attention/query', f'{_BLOCK}attention.self.query', KERNEL, FLAT),
    *_pair(f'{LAYERS}attention/key', f'{_BLOCK}attention.self.key', KERNEL, FLAT),
    *_pair(f'{LAYERS}attention/value', f'{_BLOCK}attention.self.value', KERNEL, FLAT),
    *_pair(f'{LAYERS}attention/output', f'{_BLOCK}attention.output.dense', KERNEL_FROM_HEADS),
    *_norm(f'{LAYERS}attention_norm', f'{_BLOCK}attention.output.LayerNorm'),
    *_pair(f'{LAYERS}mlp/up', f'{_BLOCK}intermediate.dense'),
    *_pair(f'{LAYERS}mlp/down', f'{_BLOCK}output.dense'),
    *_norm(f'{LAYERS}mlp_norm', f'{_BLOCK}output.LayerNorm'),
    *_pair('pooler', 'bert.pooler.dense'),
    *_pair('mlm/dense', 'cls.predictions.transform.dense'),
    *_norm('mlm/norm', 'cls.predictions.transform.LayerNorm'),
    ('mlm/bias', 'cls.predictions.bias', ROWS),
    *_pair('nsp', 'cls.seq_relationship'),
    *_pair('head', '{head}'),  # of a task's model: Head.projection of convert/heads.py
)


_NAMED = {path for path, _, _ in TABLE}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor: our path with stacked layers, the block it belongs to (None outside of blocks), theirs."""

    ours: str
    layer: int | None
    theirs: str
    kind: TensorKind

    def their_shape(self, shape: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """The shape that their tensor has when ours (of one block) has `shape`."""
        return self.kind.give(np.broadcast_to(np.float32(0), shape), vocab_size).shape


def entries(num_layers: int, ours: Mapping[str, object], head: str = '') -> Iterator[Entry]:
    """The table expanded for one model: an entry for each of their tensors whose path is in `ours`.

    A path that transformers has no name for (of a BiLSTM, of the last norm of a pre-LN model) goes by its own.

    Args:
      num_layers: blocks.
      ours: by path.
      head: their name of a task's head (Head.projection).
    """
    for path, theirs, kind in TABLE:
        if path not in ours:
            continue
        if path.startswith(LAYERS):
            for i in range(num_layers):
                yield Entry(path, i, theirs.format(i=i), kind)
        else:
            yield Entry(path, None, theirs.format(head=head or 'head'), kind)
    for path in sorted(set(ours) - _NAMED):
        yield Entry(path, None, path.replace('/', '.'), SAME)


def named_entries(num_layers: int, ours: Mapping[str, object], head: str = '') -> list[Entry]:
    """The entries of a model that transformers has names for.

    Raises:
      KeyError: a path that it has none for, which would be lost.
    """
    unknown = sorted(set(ours) - _NAMED)
    if unknown:
        raise KeyError(f'convert/names.py has no name for {unknown}')
    return list(entries(num_layers, ours, head))


def to_huggingface(
    params: dict[str, np.ndarray], num_layers: int, vocab_size: int, head: str = '', *, own: bool = False
) -> dict[str, np.ndarray]:
    """Their tensors from ours, contiguous.

    Args:
      params: by flat path, layers stacked; empty afterwards: of a large model there is no room for both.
      num_layers: blocks.
      vocab_size: pieces; further rows are padding and are dropped.
      head: see `entries`.
      own: takes paths that transformers has no name for, too.

    Raises:
      KeyError: without `own` such a path, which would be lost.
    """
    listed = list(entries(num_layers, params, head)) if own else named_entries(num_layers, params, head)
    tensors = {}
    for path, group in itertools.groupby(listed, key=lambda entry: entry.ours):
        x = params.pop(path)
        for entry in group:
            part = x if entry.layer is None else x[entry.layer]
            tensors[entry.theirs] = np.ascontiguousarray(entry.kind.give(part, vocab_size))
    return tensors


def from_huggingface(
    tensors: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], num_layers: int, head: str = ''
) -> dict[str, np.ndarray]:
    """Our arrays (flat paths, layers stacked) from theirs; a path that lacks any tensor is left out.

    Args:
      tensors: by their names, of the shapes that `Entry.their_shape` gives; those of the table are gone afterwards: of
        a large model there is no room for both.
      shapes: of our arrays, by path.
      num_layers: blocks.
      head: see `entries`.
    """
    params: dict[str, np.ndarray] = {}
    found = [entry for entry in entries(num_layers, shapes, head) if entry.theirs in tensors]
    blocks = collections.Counter(entry.ours for entry in found if entry.layer is not None)
    for entry in found:
        path, theirs = entry.ours, tensors.pop(entry.theirs)
        if entry.layer is None:
            params[path] = np.ascontiguousarray(entry.kind.take(theirs, shapes[path]))
        elif blocks[path] == num_layers:
            if path not in params:
                params[path] = np.empty(shapes[path], theirs.dtype)
            params[path][entry.layer] = entry.kind.take(theirs, shapes[path][1:])
    return params
