"""The methods of `api.Bert` that use the heads from pre-training."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from bertjax.inference.arguments import Texts, as_text_list, check_count, check_values, match_input
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.runner import Runner
from bertjax.inference.score import next_sentence_probabilities, score_texts
from bertjax.loading.load_model import LoadedModel


class Filling(TypedDict):
    """A candidate for a mask: a piece, its probability, and the text with this piece in place of the mask."""

    token: str
    probability: float
    text: str


class JointFilling(TypedDict):
    """A text with all its masks filled. `order` lists the indices of the masks in the order of filling."""

    text: str
    tokens: list[str]
    order: list[int]
    log_probability: float


class Score(TypedDict):
    """The pseudo-log-likelihood of a text in nats, its numbers of pieces and words, and its pseudo-perplexity."""

    log_likelihood: float
    tokens: int
    words: int
    perplexity: float | None


class _ExtendOptions(TypedDict, total=False):
    tokens: int
    temperature: float
    top_k: int
    seed: int


# A list for a text with one mask, a list of lists for several masks. Any lets callers index without a type check.
OneFilled = list[Filling] | Any


class MaskedMethods:
    """Methods that fill masks, score texts and text pairs, and continue texts."""

    _model: LoadedModel
    _runner: Runner

    @overload
    def fill(self, texts: str, *, top_k: int = ..., jointly: Literal[False] = ...) -> OneFilled: ...

    @overload
    def fill(self, texts: Sequence[str], *, top_k: int = ..., jointly: Literal[False] = ...) -> list[OneFilled]: ...

    @overload
    def fill(self, texts: str, *, top_k: int = ..., jointly: Literal[True]) -> JointFilling: ...

    @overload
    def fill(self, texts: Sequence[str], *, top_k: int = ..., jointly: Literal[True]) -> list[JointFilling]: ...

    def fill(self, texts: Texts, *, top_k: int = 5, jointly: bool = False) -> Any:
        """Predicts the pieces for the masks in texts. A mask is written as [MASK], <mask> or the model's mask token.

        Args:
          texts: One text or several, each with at least one mask.
          top_k: The number of candidates per mask; not used with `jointly`.
          jointly: Whether to fill the masks of a text one after the other. Each step fills the mask whose best piece
            is the most probable. Each prediction is conditioned on the pieces that are already filled in.

        Returns:
          For a text with one mask, a list of `{'token': …, 'probability': …, 'text': …}`, the most probable first. For
          a text with several masks, a list of such lists. With `jointly`, a dict for each text:
          `{'text': …, 'tokens': …, 'order': …, 'log_probability': …}`; see `inference.fill.fill_jointly`.

        Raises:
          UserError: A text has no mask, truncation would remove a mask, or the model has no MLM head.
        """
        top_k, jointly = check_values('fill', {'top_k': top_k, 'jointly': jointly}).values()
        self._model.require('mlm', 'filling')
        numbered = enumerate(as_text_list(texts))
        masked = [MaskedText(text, f'texts[{i}]', self.tokenizer, self._runner.max_length) for i, text in numbered]
        if jointly:
            return match_input(texts, fill_jointly(self._runner, masked))
        fillings = fill_each(self._runner, masked, top_k)
        return match_input(texts, [masks[0] if len(masks) == 1 else masks for masks in fillings])

    @overload
    def score(self, texts: str) -> Score: ...

    @overload
    def score(self, texts: Sequence[str]) -> list[Score]: ...

    def score(self, texts: Texts) -> Any:
        """Computes pseudo-log-likelihoods by masking each piece in turn (Salazar et al. 2020, arXiv 1910.14659).

        Returns:
          For each text, `{'log_likelihood': …, 'tokens': …, 'words': …, 'perplexity': …}`. The log-likelihood, in nats,
          is the sum over all pieces except [CLS] and [SEP]. The perplexity is exp(-log_likelihood / tokens). It is
          None if the text has no pieces, or if the value overflows float64.

        Raises:
          UserError: The model has no MLM head.
        """
        self._model.require('mlm', 'scoring')
        return match_input(texts, score_texts(self._runner, as_text_list(texts)))

    @overload
    def next_sentence(self, first: str, second: str) -> float: ...

    @overload
    def next_sentence(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray: ...

    def next_sentence(self, first: Texts, second: Texts) -> Any:
        """Computes the probability that the second text follows the first.

        If the model was trained on sentence order (ALBERT's objective), the result is the probability that the texts
        are in the right order.

        Returns:
          A float for one pair, or float64 [N] for lists of N texts.

        Raises:
          UserError: The model has no head for sentence pairs.
        """
        self._model.require('nsp', 'next_sentence')
        first_texts, second_texts = as_text_list(first, 'first'), as_text_list(second, 'second')
        check_count('second', second_texts, first_texts)
        if not first_texts:
            return np.zeros(0)
        probabilities = next_sentence_probabilities(self._runner, first_texts, second_texts)
        return float(probabilities[0]) if isinstance(first, str) else probabilities

    @overload
    def extend(self, texts: str, **options: Unpack[_ExtendOptions]) -> str: ...

    @overload
    def extend(self, texts: Sequence[str], **options: Unpack[_ExtendOptions]) -> list[str]: ...

    def extend(
        self, texts: Texts, *, tokens: int = 20, temperature: float = 1.0, top_k: int = 50, seed: int = 0
    ) -> Any:
        """Continues texts by appending masks and filling them from left to right.

        The method is slow. The continuations are poor, because masked language models are not trained to continue text.

        Args:
          tokens: The number of pieces to append.
          temperature: The sampling temperature; 0 always takes the most probable piece.
          top_k: The number of most probable pieces to sample from.
          seed: The sampling seed. The same seed gives the same continuation of a text.

        Returns:
          Each text with its continuation.

        Raises:
          UserError: `tokens` exceeds the maximum length without [CLS] and [SEP], or the model has no MLM head.
        """
        options = {'tokens': tokens, 'temperature': temperature, 'top_k': top_k, 'seed': seed}
        values = check_values('fill', options, top_k='sample')
        self._model.require('mlm', 'continuing')
        return match_input(texts, extend(self._runner, as_text_list(texts), **values))
