"""The methods of `api.Bert` that ask a masked language model."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from bertjax.inference.answers import Filling, JointFilling, Score
from bertjax.inference.arguments import Texts, check_count, check_values, like, several
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.masked import follow_probabilities
from bertjax.inference.runner import Runner
from bertjax.inference.score import score_texts
from bertjax.loading.load_model import LoadedModel


class _Extending(TypedDict, total=False):
    tokens: int
    temperature: float
    top_k: int
    seed: int


OneFilled = list[Filling] | Any  # of a text with several masks a list of these, which nobody should have to tell apart


class MaskedMethods:
    """Masks filled, scores, pairs and continuations."""

    _model: LoadedModel
    _runner: Runner
    _max_length: int

    @overload
    def fill(self, texts: str, *, top_k: int = ..., jointly: Literal[False] = ...) -> OneFilled: ...

    @overload
    def fill(self, texts: Sequence[str], *, top_k: int = ..., jointly: Literal[False] = ...) -> list[OneFilled]: ...

    @overload
    def fill(self, texts: str, *, top_k: int = ..., jointly: Literal[True]) -> JointFilling: ...

    @overload
    def fill(self, texts: Sequence[str], *, top_k: int = ..., jointly: Literal[True]) -> list[JointFilling]: ...

    def fill(self, texts: Texts, *, top_k: int = 5, jointly: bool = False) -> Any:
        """What the model would write for masks, [MASK] or <mask>, in texts.

        Args:
          texts: one or several, each with at least one mask.
          top_k: fillings a mask.
          jointly: fill all masks of a text together, the one that the model is most sure of first, then look again.

        Returns:
          For each text a list of `{'token': …, 'probability': …, 'text': …}`, the most probable first; where it has
          several masks a list of such lists. Jointly `{'text': …, 'tokens': …, 'order': …, 'log_probability': …}`, see
          `inference.fill.fill_jointly`.

        Raises:
          UserError: a text without mask, or a model without a head for them.
        """
        top_k, jointly = check_values('fill', top_k=('top_k', top_k), jointly=('jointly', jointly)).values()
        self._model.require('mlm', 'filling')
        where = [f'texts[{i}]' for i in range(len(several(texts)))]
        places = zip(several(texts), where, strict=True)
        masked = [MaskedText(text, place, self.tokenizer, self._max_length) for text, place in places]
        if jointly:
            return like(texts, fill_jointly(self._runner, masked))
        found = fill_each(self._runner, masked, top_k)
        return like(texts, [masks[0] if len(masks) == 1 else masks for masks in found])

    @overload
    def score(self, texts: str) -> Score: ...

    @overload
    def score(self, texts: Sequence[str]) -> list[Score]: ...

    def score(self, texts: Texts) -> Any:
        """Pseudo-log-likelihoods of texts: each piece masked in turn (Salazar et al. 2020, arXiv 1910.14659).

        Returns:
          For each `{'log_likelihood': …, 'tokens': …, 'words': …, 'perplexity': …}`, in nats, over the pieces without
          [CLS] and [SEP]; the perplexity is exp(-log_likelihood / tokens), None of a text without pieces.

        Raises:
          UserError: a model without a head for masked words.
        """
        self._model.require('mlm', 'scoring')
        return like(texts, score_texts(self._runner, several(texts), self._max_length))

    @overload
    def next_sentence(self, first: str, second: str) -> float: ...

    @overload
    def next_sentence(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray: ...

    def next_sentence(self, first: Texts, second: Texts) -> Any:
        """The probability that a text follows another; of a model trained on their order, that they are in order.

        Returns:
          A number, of several pairs float64 [N].

        Raises:
          UserError: a model without a head for sentence pairs.
        """
        self._model.require('nsp', 'next_sentence')
        firsts, seconds = several(first, 'first'), several(second, 'second')
        check_count('second', seconds, firsts)
        if not firsts:
            return np.zeros(0)
        found = follow_probabilities(self._runner, firsts, seconds, self._max_length)
        return float(found[0]) if isinstance(first, str) else found

    @overload
    def extend(self, texts: str, **asked: Unpack[_Extending]) -> str: ...

    @overload
    def extend(self, texts: Sequence[str], **asked: Unpack[_Extending]) -> list[str]: ...

    def extend(
        self, texts: Texts, *, tokens: int = 20, temperature: float = 1.0, top_k: int = 50, seed: int = 0
    ) -> Any:
        """Texts continued by masks that are appended and filled from left to right: slow, and as weak as can be
        expected of a model that was never trained for it.

        Args:
          texts: one or several.
          tokens: pieces to append.
          temperature: of what is drawn from; 0 for always the most probable piece.
          top_k: drawn among so many.
          seed: the same seed continues the same text in the same way.

        Returns:
          For each the text with its continuation.

        Raises:
          UserError: more tokens than the model has positions, or one without a head for masked words.
        """
        asked = {'tokens': ('tokens', tokens), 'temperature': ('temperature', temperature)}
        chosen = check_values('fill', **asked, top_k=('sample', top_k), seed=('seed', seed))
        self._model.require('mlm', 'continuing')
        return like(texts, extend(self._runner, several(texts), **chosen, max_length=self._max_length))
