"""Computes features of texts: selects hidden states, combines several layers, and pools over tokens."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config.plain import to_plain
from bertjax.convert.huggingface.dense import Dense
from bertjax.convert.huggingface.sentence_transformers import SentenceModules
from bertjax.data.features import INPUTS, Features
from bertjax.errors import UserError
from bertjax.inference.runner import Forward, Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.model.config import BertConfig
from bertjax.model.pooling import combine_layers, pool_tokens
from bertjax.progress import Advance
from bertjax.tasks.late_interaction.task import LateInteractionTask
from bertjax.tasks.reranking.task import RerankTask
from bertjax.tasks.sentence.features import text_features
from bertjax.text.tokenizer import Tokenizer

# The names of prompts for queries and for documents, in the order in which sentence-transformers looks for them.
QUERY, DOCUMENT = ('query',), ('document', 'passage', 'corpus')
# The fields of an Encoding that are keys of config.extract.
ENCODING_OPTIONS = ('layers', 'combine', 'weights', 'pool', 'normalize', 'prompt', 'truncate_dim')


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The definition of a text's features; see `encode_methods.EncodeMethods.encode` for the other fields.

    Attributes:
      pool: A method in `model.pooling.POOL`; 'none' means one vector per token.
      prompt: A prefix of every text.
      dense: Dense layers applied to the pooled vectors before normalization.
      truncate_dim: The number of leading dimensions to keep; 0 for all.
      truncate_first: Whether the vectors are truncated before normalization instead of after it.

    Raises:
      UserError: The settings contradict each other.
    """

    layers: tuple[int, ...] = (-1,)
    combine: str = 'mean'
    weights: tuple[float, ...] = ()
    pool: str = 'mean'
    normalize: bool = False
    prompt: str = ''
    dense: tuple[Dense, ...] = ()
    truncate_dim: int = 0
    truncate_first: bool = True

    def __post_init__(self):
        if not self.layers:
            raise UserError('layers', 'no layer', 'at least one layer', 'use for example -1, the last layer')
        if (self.combine == 'weighted') != bool(self.weights) or len(self.weights) not in (0, len(self.layers)):
            found = f'{len(self.weights)} weights with combine={self.combine!r} and {len(self.layers)} layer(s)'
            expected = "one weight per layer with combine='weighted', else no weights"
            raise UserError('weights', found, expected, 'correct one of them')
        if self.pool == 'pooler' and self.layers != (-1,):
            raise UserError('pool', "'pooler' with layers other than the last", 'layers=-1', 'omit the layers')

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as JSON values for the metadata of features; `dense` lists the widths of the Dense layers."""
        facts = {name: to_plain(getattr(self, name)) for name in ENCODING_OPTIONS}
        return facts | {'dense': [layer.config.width for layer in self.dense]}

    def width(self, config: BertConfig) -> int:
        """Returns the width D' of the features."""
        if self.truncate_dim:
            return self.truncate_dim
        if self.dense:
            return self.dense[-1].config.width
        return config.width * (len(self.layers) if self.combine == 'concat' else 1)


def resolve_encoding(
    model: LoadedModel, *, pool: str, normalize: bool | None, prompt: str | None = None, **options: Any
) -> Encoding:
    """Makes an Encoding from options and, with pool='auto', the `sentence_modules` of the model.

    Args:
      pool, normalize, prompt: See `encode_methods.EncodeMethods.encode`; pool='none' means one vector per token.
      **options: The fields `layers`, `combine`, `weights` and `truncate_dim` of the Encoding.

    Raises:
      UserError: The modules are not supported or do not fit `layers`, the Encoding is invalid, the model lacks a layer
        or the pooler, or its vectors are shorter than `truncate_dim`. `prompt` is a name in QUERY or DOCUMENT, but the
        model has no such prompt. Or, with pool='auto', the model is a reranker or a late-interaction model.
    """
    modules, prompts = model.sentence_modules if pool == 'auto' else None, _prompts(model)
    if prompt in {*QUERY, *DOCUMENT} - prompts.keys():
        found = f'{prompt!r}, which is not the name of a prompt of {model.where}'
        expected = f'one of {", ".join(prompts)}, or a prefix' if prompts else 'a prefix of every text'
        raise UserError('prompt', found, expected, "for example prompt='query: '")
    prompt = prompts.get(prompt, prompt)
    if modules is None:
        if pool == 'auto' and isinstance(model.task, LateInteractionTask | RerankTask):
            fix = "use rerank, or encode the texts with a pooling such as pool='mean'"
            raise UserError(model.where, f'a model for {model.task.results}', 'a model that embeds texts', fix)
        pool = 'mean' if pool == 'auto' else pool
        return _check(model, Encoding(pool=pool, normalize=bool(normalize), prompt=prompt or '', **options))
    if modules.refusal:
        raise modules.refusal
    if modules.lowercase and not model.tokenizer.lowercase:
        fix = "encode lowercased texts with a pooling such as pool='mean'"
        found = 'do_lower_case with a cased tokenizer'
        raise UserError(model.where, found, 'a tokenizer that lowercases', fix)
    if modules.dense and options['layers'] != (-1,):
        expected = '-1, the input of the Dense layers in the folder'
        fix = "omit the layers, or give a pooling such as pool='mean'"
        raise UserError('layers', str(options['layers']), expected, fix)
    dense = _dense_layers(model, modules)
    widths = [model.config.width, *(layer.config.width for layer in dense)]
    for layer, width in zip(dense, widths, strict=False):
        if layer.kernel.shape[0] != width:
            found = f'a Dense layer with {layer.kernel.shape[0]:,} inputs'
            expected = f'{width:,} inputs, the width of the preceding vectors'
            raise UserError(model.where, found, expected, 'copy the directory again')
    if options['layers'] == (-1,):
        if len(modules.layers) > 1 and (combine := options.get('combine', 'mean')) != 'mean':
            fix = 'omit it, or also give the layers'
            raise UserError('combine', repr(combine), "the combination of layers of the model's folder", fix)
        combine = {'combine': 'weighted', 'weights': modules.weights} if modules.weights else {}
        options |= {'layers': modules.layers, **combine}
    if modules.truncate_dim and not options.get('truncate_dim'):
        # SentenceTransformer.encode truncates after the modules. It normalizes again only if the caller asks for it.
        options |= {'truncate_dim': min(modules.truncate_dim, widths[-1]), 'truncate_first': normalize is not None}
    normalize = modules.normalize if normalize is None else normalize
    prompt = modules.prompt if prompt is None else prompt
    if prompt and not modules.include_prompt:
        fix = "encode the texts with prompt='', or with a pooling such as pool='mean'"
        raise UserError(model.where, 'a prompt that is excluded from pooling', 'a prompt that is pooled', fix)
    return _check(model, Encoding(pool=modules.pool, normalize=normalize, prompt=prompt, dense=dense, **options))


def _check(model: LoadedModel, encoding: Encoding) -> Encoding:
    """Returns the encoding. Raises a UserError if the model cannot compute it."""
    width, count = dataclasses.replace(encoding, truncate_dim=0).width(model.config), model.config.num_layers
    if encoding.truncate_dim > width:
        expected = f"at most {width}, the width of the model's vectors"
        raise UserError('truncate_dim', str(encoding.truncate_dim), expected, 'choose a smaller number')
    for layer in encoding.layers:
        if not -count - 1 <= layer <= count:
            expected = f'0 (the embeddings) to {count} (the last block), or -1 to {-count - 1} from the end'
            raise UserError('layers', str(layer), expected, 'choose a layer that the model has')
    if encoding.pool == 'pooler':
        model.require('pooler', "pool='pooler'")
    return encoding


def _dense_layers(model: LoadedModel, modules: SentenceModules) -> tuple[Dense, ...]:
    """Returns the Dense modules with their tensors, from the folder or from the parameters of the model."""
    if modules.dense_layers or not modules.dense:
        return modules.dense_layers
    layers = []
    for i, config in enumerate(modules.dense):
        params = jax.device_get(model.params['head'][f'dense_{i}'])
        kernel, bias = (None if x is None else np.asarray(x, np.float32) for x in map(params.get, ('kernel', 'bias')))
        layers.append(Dense(config, kernel, bias))
    return tuple(layers)


def find_prompt(model: LoadedModel, names: Sequence[str]) -> str:
    """Returns the first of these names that is a prompt of the model, or '' (no prompt) if there is none."""
    return next((name for name in names if name in _prompts(model)), '')


def _prompts(model: LoadedModel) -> Mapping[str, str]:
    return model.sentence_modules.prompts if model.sentence_modules else {}


def make_encode(module: nn.Module, encoding: Encoding) -> Forward:
    """Makes the function (params, batch) -> {'features': float32 [B, D], or [B, S, D] without pooling}.

    The function applies neither the Dense layers nor the truncation of `encoding`, so D is the width before them.
    """
    only_last = encoding.layers == (-1,)

    def states(bound: nn.Module, ids: jax.Array, segments: jax.Array, mask: jax.Array) -> jax.Array:
        last, layers = bound.encoder(ids, segments, mask, all_layers=not only_last)
        if encoding.pool == 'pooler':
            return bound.pooler(last[:, 0])
        return last[None] if only_last else layers[jnp.asarray(encoding.layers)]  # [layers, B, S, D]

    def forward(params, batch):
        mask = batch['attention_mask']
        x = module.apply({'params': params}, *(batch[name] for name in INPUTS), method=states)
        x = x.astype(jnp.float32)
        if encoding.pool != 'pooler':
            x = combine_layers(x, encoding.combine, encoding.weights)
            x = pool_tokens(x, mask, encoding.pool)
        if encoding.normalize:
            x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        return {'features': x}

    return forward


def build_sequences(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> Features:
    """Tokenizes texts as `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with `pairs`.

    Sequences longer than `max_length` tokens are truncated at the end. In a pair, the longer text is truncated first.
    """
    return text_features(texts, pairs, None, tokenizer, seq_len=max_length, long='truncate', stride=0)


def describe_full(full: int, max_length: int) -> str:
    """Returns a message that `full` texts have `max_length` tokens, so that they may have been truncated."""
    return f'{full:,} texts have {max_length} tokens, the maximum: longer texts were truncated'


def token_spans(
    tokenizer: Tokenizer, features: Features, texts: Sequence[str], pairs: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of each token's first character and of the character after its last, as two int32 arrays [T].

    `features`, with T tokens, is the result of `build_sequences`. The indices are -1 for special tokens.
    """
    encoded = tokenizer.encode_with_offsets([*texts, *(pairs or ())])
    bounds = np.full((2, len(features.tokens)), -1, np.int32)
    for row, (begin, end) in enumerate(itertools.pairwise(features.offsets.tolist())):
        second = begin + int(features.second[row])
        last = second - (1 if pairs is None else tokenizer.separators)
        bounds[:, begin + 1 : last] = np.stack(encoded[row][1:])[:, : last - begin - 1]  # Between [CLS] and [SEP].
        if pairs is not None:
            bounds[:, second : end - 1] = np.stack(encoded[len(texts) + row][1:])[:, : end - 1 - second]
    return bounds[0], bounds[1]


def encode(runner: Runner, features: Features, encoding: Encoding, advance: Advance | None = None) -> list[np.ndarray]:
    """Computes the features of each row: float32 [D'], or [S, D'] without pooling."""
    per_token = ('features',) if encoding.pool == 'none' else ()
    # The compiled function gets texts with their prompt, and neither truncates nor applies Dense layers, so it is the
    # same for all values of `prompt` and `truncate_dim`.
    normalize = encoding.normalize and not encoding.dense
    full = dataclasses.replace(encoding, prompt='', truncate_dim=0, truncate_first=True, dense=(), normalize=normalize)
    make_forward = functools.partial(make_encode, encoding=full)
    name, title = ('encode', full), 'encoding'
    rows = runner.run(name, make_forward, features, per_token=per_token, title=title, advance=advance)['features']
    is_truncated = encoding.width(runner.model.config) < full.width(runner.model.config)
    if not rows or not (encoding.dense or is_truncated):
        return rows
    return [_finish(x, encoding) for x in rows] if per_token else list(_finish(np.stack(rows), encoding))


def _finish(x: np.ndarray, encoding: Encoding) -> np.ndarray:
    """Applies the Dense layers, the truncation and, if requested, the normalization: float32 [N, D] -> [N, D']."""
    for layer in encoding.dense:
        x = layer(x)
    count = encoding.truncate_dim or None
    x = x[:, :count] if encoding.truncate_first else x
    x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) if encoding.normalize else x
    return x[:, :count]
