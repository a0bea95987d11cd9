"""The methods of `api.Bert` that encode texts: features, pieces, spans and attention."""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.inference.arguments import Texts, as_pair_lists, as_text_list, check_values, match_input, to_python
from bertjax.inference.attention import Attention, compute_attention
from bertjax.inference.encode import build_sequences, encode, resolve_encoding, token_spans
from bertjax.inference.runner import Runner
from bertjax.inference.vector_files import calibrated_ranges
from bertjax.loading.load_model import LoadedModel
from bertjax.model.quantization import quantize, value_ranges


class _EncodeOptions(TypedDict, total=False):
    layers: int | Sequence[int]
    combine: str
    weights: Sequence[float]
    normalize: bool | None
    prompt: str | None
    truncate_dim: int | None
    precision: str
    calibration: np.ndarray | None


class EncodeMethods:
    """Methods that return the features, the attention, the pieces and the character spans of texts."""

    _model: LoadedModel
    _runner: Runner

    @overload
    def encode(
        self, texts: Texts, pairs: Texts | None = ..., *, pool: str = ..., **options: Unpack[_EncodeOptions]
    ) -> np.ndarray: ...

    @overload
    def encode(
        self, texts: Texts, pairs: Texts | None = ..., *, pool: None, **options: Unpack[_EncodeOptions]
    ) -> Any: ...  # an array for one text, else a list of arrays

    def encode(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        layers: int | Sequence[int] = -1,
        pool: str | None = 'auto',
        combine: str = 'mean',
        weights: Sequence[float] = (),
        normalize: bool | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        precision: str = 'float32',
        calibration: np.ndarray | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Computes features of texts.

        Args:
          texts: One text or several.
          pairs: The second texts, which the model reads together with the first.
          layers: One or several hidden states: 0 is the embeddings, 1 to L are the blocks, -1 is the last block.
          pool: The pooling: 'mean' over all tokens, 'cls', 'max', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken',
            'pooler' (tanh of a projection of [CLS]), or None for one vector per token. 'auto' means 'mean', except for
            a sentence-transformers folder or a model of configs/embed.py. For these, 'auto' computes the same vectors
            as `SentenceTransformer.encode`, including the prompt, the Dense layers and the normalization. Rerankers and
            late-interaction models refuse 'auto'.
          combine: The method that combines several layers: 'mean', 'sum', 'concat' or 'weighted', a weighted sum.
          weights: One weight per layer, for 'weighted'.
          normalize: Whether to scale each vector to length 1. None uses the setting of the model if `pool` is 'auto',
            else False.
          prompt: The name of a prompt of the model, such as 'query' or 'document', or a prefix of every text. None uses
            the default prompt of the model if `pool` is 'auto', else no prompt.
          truncate_dim: The number of leading dimensions to keep. Vectors are truncated before they are normalized.
            None uses the setting of the model if `pool` is 'auto', else all dimensions. If `normalize` is also
            None, vectors are truncated after the model's own normalization.
          precision: 'float32', 'int8' (one byte per dimension) or 'binary' (one bit per dimension, eight in a byte);
            see `model.quantization.quantize`. `similarity` computes the cosines of quantized vectors.
          calibration: Vectors that `encode` returned, float32 [M, D], only for 'int8'. The range of their values in
            each dimension is divided into 255 steps, so only their minimum and maximum matter. None uses the vectors
            of `texts`.

        Returns:
          float32 or int8, [D] for one text or [N, D] for several. With 'binary', uint8 [D / 8] or [N, D / 8]. Without
          pooling, float32 [S, D] for one text, or a list of such arrays for several. S is the number of tokens
          including [CLS] and [SEP]; see `pieces` and `spans`.

        Raises:
          UserError: The model lacks a layer or the pooler, its vectors are shorter than `truncate_dim`, `pool` does not
            fit the model, or `precision` does not fit the pooling or `calibration`.
        """
        layers = to_python(layers)
        options = {'layers': layers if isinstance(layers, tuple) else (layers,), 'combine': combine, 'weights': weights}
        options |= {'pool': 'none' if pool is None else pool, 'normalize': normalize, 'precision': precision}
        options |= {'truncate_dim': 0 if truncate_dim is None else truncate_dim}
        values = check_values('extract', options)
        if prompt is not None:
            as_text_list([prompt], 'prompt')
        precision = values.pop('precision')
        _check_precision(precision, values['pool'], calibration)
        encoding = resolve_encoding(self._model, prompt=prompt, **values)
        first_texts, second_texts = as_pair_lists(texts, pairs)
        prompted = [encoding.prompt + text for text in first_texts]
        width = encoding.width(self._model.config)
        ranges = _find_ranges(calibration, len(prompted), width) if precision == 'int8' else None
        rows = encode(self._runner, self._features(prompted, second_texts), encoding) if prompted else []
        if encoding.pool == 'none':
            return match_input(texts, rows)
        x = np.stack(rows) if rows else np.zeros((0, width), np.float32)
        ranges = value_ranges(x) if precision == 'int8' and ranges is None else ranges
        return match_input(texts, quantize(x, precision, ranges))

    @overload
    def pieces(self, texts: str, pairs: str | None = ...) -> list[str]: ...

    @overload
    def pieces(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[list[str]]: ...

    def pieces(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Returns the list of pieces of each text, including special tokens, as the model reads them."""
        lists = as_pair_lists(texts, pairs)
        if not lists[0]:
            return []
        features = self._features(*lists)
        ids = np.split(features.tokens, features.offsets[1:-1])
        return match_input(texts, [[self._model.tokenizer.pieces[i] for i in row] for row in ids])

    @overload
    def spans(self, texts: str, pairs: str | None = ...) -> np.ndarray: ...

    @overload
    def spans(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[np.ndarray]: ...

    def spans(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Returns the character span of each of the `pieces`.

        Returns:
          For each text, an int32 array [S, 2]: the index of the first character, and the index after the last
          character. Both are -1 for [CLS] and [SEP]. The spans of a second text are indices in the second text.
        """
        lists = as_pair_lists(texts, pairs)
        if not lists[0]:
            return []
        features = self._features(*lists)
        bounds = token_spans(self._model.tokenizer, features, *lists)
        return match_input(texts, np.split(np.stack(bounds, axis=1), features.offsets[1:-1]))

    @overload
    def attention(self, texts: str, pairs: str | None = ...) -> Attention: ...

    @overload
    def attention(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[Attention]: ...

    def attention(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Computes the attention weights of each head of each layer. The model reads the two texts of a pair together.

        Returns:
          An `Attention` for each text. It has `pieces`, including [CLS] and [SEP], and `weights`, float32 [L, H, S, S].
          The first S indexes the queries, the last S the keys. The weights of a query sum to 1. If the model was
          loaded with dtype='bfloat16', the queries and keys are rounded.
        """
        lists = as_pair_lists(texts, pairs)
        if not lists[0]:
            return []
        return match_input(texts, compute_attention(self._runner, self._features(*lists)))

    def _features(self, first_texts: Sequence[str], second_texts: Sequence[str] | None) -> Features:
        return build_sequences(self._model.tokenizer, first_texts, second_texts, self._runner.max_length)


def _check_precision(precision: str, pool: str, calibration: np.ndarray | None) -> None:
    if precision != 'float32' and pool == 'none':
        found, expected = f'{precision!r} for one vector per token', "'float32', or a pooling"
        raise UserError('precision', found, expected, 'choose a pooling')
    if precision != 'int8' and calibration is not None:
        raise UserError(
            'calibration', f'an array with precision={precision!r}', "None without precision='int8'", 'leave it out'
        )


def _find_ranges(calibration: np.ndarray | None, count: int, width: int) -> np.ndarray | None:
    """Returns the ranges of `calibration` for `count` vectors, float32 [2, width], or None if there is none."""
    if calibration is None and count == 1:
        fix = 'pass vectors of other texts: each dimension needs a range'
        raise UserError('calibration', "nothing for a single vector with precision='int8'", 'vectors', fix)
    return None if calibration is None else calibrated_ranges('calibration', np.asarray(calibration), width)
