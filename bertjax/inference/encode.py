"""Hidden states as features: of which layers, how they are combined, and how the tokens of a text are pooled."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.convert.huggingface.sentence_transformers import Dense
from bertjax.data.features import INPUTS, Features
from bertjax.errors import UserError
from bertjax.inference.runner import Forward, Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.model.config import BertConfig
from bertjax.model.pooling import combine_layers, pool_tokens
from bertjax.tasks.sentence.features import text_features
from bertjax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Which features a text has.

    Attributes:
      layers: numbers of the hidden states: 0 the embeddings, 1 to L the blocks; -1 the last, -2 the one before it ….
      combine: of several layers: their 'mean', 'sum', 'concat'enation, or their sum 'weighted' by `weights`.
      weights: one a layer.
      pool: the 'mean' over the tokens of a text, [CLS] and [SEP] among them, or another of `model.pooling.POOL`; what
        the 'pooler' makes of [CLS], of the last layer alone; or 'none', every token's.
      normalize: divide by the Euclidean norm.
      prompt: stands before every text.
      dense: layers on the pooled vectors, before they are normalized.

    Raises:
      UserError: what does not go together.
    """

    layers: tuple[int, ...] = (-1,)
    combine: str = 'mean'
    weights: tuple[float, ...] = ()
    pool: str = 'mean'
    normalize: bool = False
    prompt: str = ''
    dense: tuple[Dense, ...] = ()

    def __post_init__(self):
        if not self.layers:
            raise UserError('layers', 'none', 'at least one number', 'for example -1, the last layer')
        if (self.combine == 'weighted') != bool(self.weights) or len(self.weights) not in (0, len(self.layers)):
            found = f'{len(self.weights)} with combine={self.combine!r} and {len(self.layers)} layer(s)'
            raise UserError('weights', found, "one a layer with combine='weighted', else none", 'correct one of them')
        if self.pool == 'pooler' and self.layers != (-1,):
            raise UserError('pool', "'pooler' of other layers than the last", 'layers=-1', 'leave the layers out')

    def prompted(self, texts: Sequence[str]) -> list[str]:
        """The texts with the prompt before each."""
        return [self.prompt + text for text in texts]

    def check(self, config: BertConfig) -> None:
        """Refuses layers that a model does not have.

        Raises:
          UserError: it does not.
        """
        count = config.num_layers
        for layer in self.layers:
            if not -count - 1 <= layer <= count:
                expected = f'0, the embeddings, to {count}, the last block, or -1 to {-count - 1} from the end'
                raise UserError('layers', str(layer), expected, 'choose a layer that the model has')

    def width(self, config: BertConfig) -> int:
        """Of the features."""
        if self.dense:
            return self.dense[-1].kernel.shape[1]
        return config.width * (len(self.layers) if self.combine == 'concat' else 1)


def chosen_encoding(model: LoadedModel, *, pool: str, normalize: bool | None, **asked: Any) -> Encoding:
    """The features that are asked for, with what the folder of a model of sentence-transformers says of them.

    Args:
      model: with the `sentence_modules`.
      pool: 'auto' for the folder's pooling, prompt, Dense layers and normalization, without such a folder for 'mean';
        any other computes what it says, and nothing of these.
      normalize: None for what the folder says, else False.
      **asked: layers, combine and weights of an Encoding.

    Raises:
      UserError: modules that cannot be computed, or that are not for these layers; see Encoding.
    """
    said = model.sentence_modules if pool == 'auto' else None
    if said is None:
        return Encoding(pool='mean' if pool == 'auto' else pool, normalize=bool(normalize), **asked)
    if said.refusal:
        raise said.refusal
    if said.lowercase and not model.tokenizer.lowercase:
        found, fix = 'do_lower_case with a tokenizer of cased text', "give lower-cased texts, and pool, such as 'mean'"
        raise UserError(model.where, found, 'a tokenizer that lower-cases', fix)
    if said.dense and asked['layers'] != (-1,):
        fix = "leave the layers out, or name a pooling, such as pool='mean'"
        raise UserError('layers', str(asked['layers']), '-1, which the Dense layers of the folder take', fix)
    widths = [model.config.width, *(layer.kernel.shape[1] for layer in said.dense)]
    for layer, width in zip(said.dense, widths, strict=False):
        if layer.kernel.shape[0] != width:
            found, fix = f'a Dense layer of {layer.kernel.shape[0]:,} inputs', 'copy the directory again'
            raise UserError(model.where, found, f'one of {width:,}, as it is given', fix)
    normalize = said.normalize if normalize is None else normalize
    return Encoding(pool=said.pool, normalize=normalize, prompt=said.prompt, dense=said.dense, **asked)


def make_encode(module: nn.Module, encoding: Encoding) -> Forward:
    """(params, batch) -> `features`, float32 [B, D'], or without pooling [B, S, D']."""
    only_last = encoding.layers == (-1,)

    def states(bound: nn.Module, ids: jax.Array, segments: jax.Array, mask: jax.Array) -> jax.Array:
        last, layers = bound.encoder(ids, segments, mask, all_layers=not only_last)
        if encoding.pool == 'pooler':
            return bound.pooler(last[:, 0])
        return last[None] if only_last else layers[jnp.asarray(encoding.layers)]  # [N, B, S, D]

    def forward(params, batch):
        mask = batch['attention_mask']
        x = module.apply({'params': params}, *(batch[name] for name in INPUTS), method=states)
        x = x.astype(jnp.float32)
        if encoding.pool != 'pooler':
            x = combine_layers(x, encoding.combine, encoding.weights)
            x = pool_tokens(x, mask, encoding.pool)
        if encoding.normalize and not encoding.dense:
            x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        return {'features': x}

    return forward


def sequences(tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Features:
    """`[CLS] A [SEP]`, or with `pairs` `[CLS] A [SEP] B [SEP]`, of at most `max_length` tokens: longer ones lose their
    end, of pairs first the longer text."""
    return text_features(texts, pairs, None, tokenizer, seq_len=max_length, long='truncate', stride=0)


def spans(
    tokenizer: Tokenizer, features: Features, texts: Sequence[str], pairs: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Where the tokens of `sequences` begin and end in their text, in characters: int32 [T], -1 of special ones."""
    located = tokenizer.encode_with_offsets([*texts, *(pairs or ())])
    places = np.full((2, len(features.tokens)), -1, np.int32)
    for row, (begin, end) in enumerate(itertools.pairwise(features.offsets.tolist())):
        second = begin + int(features.second[row])
        last = second - (1 if pairs is None else tokenizer.separators)
        places[:, begin + 1 : last] = np.stack(located[row][1:])[:, : last - begin - 1]  # between [CLS] and [SEP]
        if pairs is not None:
            places[:, second : end - 1] = np.stack(located[len(texts) + row][1:])[:, : end - 1 - second]
    return places[0], places[1]


def check_encoding(model: LoadedModel, encoding: Encoding) -> None:
    """Refuses features that a model does not have.

    Raises:
      UserError: layers, or a pooler, that it lacks.
    """
    encoding.check(model.config)
    if encoding.pool == 'pooler':
        model.require('pooler', "pool='pooler'")


def encode(
    runner: Runner, features: Features, encoding: Encoding, advance: Callable[[int], object] | None = None
) -> list[np.ndarray]:
    """The features of each row: float32 [D'], or without pooling [S, D']; `advance` see `Runner.run`.

    Raises:
      UserError: layers, or a pooler, that the model does not have.
    """
    check_encoding(runner.model, encoding)
    per_token = ('features',) if encoding.pool == 'none' else ()
    forward = make_encode(runner.model.module, encoding)
    name, title = ('encode', encoding), 'encoding'
    rows = runner.run(name, forward, features, per_token=per_token, title=title, advance=advance)['features']
    return list(_after_dense(np.stack(rows), encoding)) if encoding.dense and rows else rows


def _after_dense(x: np.ndarray, encoding: Encoding) -> np.ndarray:
    """float32 [N, D] -> [N, D'], normalized where that is asked for."""
    for layer in encoding.dense:
        x = layer(x)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) if encoding.normalize else x
