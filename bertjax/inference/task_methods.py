"""The methods of `api.Bert` that ask a model of a task."""

from collections.abc import Sequence
from typing import Any, overload

from bertjax.inference.answers import Answer, ChoiceAnswer, Label, Tagged
from bertjax.inference.arguments import Texts, check_count, check_list, like, several
from bertjax.inference.runner import Runner
from bertjax.inference.tasks import (
    answer_records,
    choice_records,
    question_records,
    sentence_records,
    tag_records,
    text_records,
)
from bertjax.loading.load_model import LoadedModel
from bertjax.tasks.task import Task


class TaskMethods:
    """Labels, answers, tags and choices."""

    task: Task | None
    _model: LoadedModel
    _runner: Runner

    @overload
    def classify(self, texts: str, pairs: str | None = ...) -> Label: ...

    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[Label]: ...

    def classify(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Labels (or scores) of texts, or of pairs.

        Returns:
          For each `{'label': …, 'probabilities': {label: …}}`, or `{'score': …}` of a regression.

        Raises:
          UserError: a model that was not tuned to such a task.
        """
        seconds = None if pairs is None else several(pairs, 'pairs')
        check_count('pairs', seconds, several(texts))
        return self._answers(texts, text_records(self.task, self._model.where, several(texts), seconds))

    @overload
    def answer(self, question: str, context: str) -> Answer: ...

    @overload
    def answer(self, question: Sequence[str], context: Sequence[str]) -> list[Answer]: ...

    def answer(self, question: Texts, context: Texts) -> Any:
        """Answers to questions, each in the context beside it.

        Returns:
          For each `{'answer': …, 'start': …, 'end': …, 'probability': …}`, characters of the context.

        Raises:
          UserError: a model that was not tuned to SQuAD or the like.
        """
        questions, contexts = several(question, 'question'), several(context, 'context')
        check_count('context', contexts, questions)
        records = question_records(self.task, self._model.where, questions, contexts)
        return self._answers(question, records)

    @overload
    def tag(self, sentences: str, *, aggregation_strategy: str = ...) -> Tagged: ...

    @overload
    def tag(self, sentences: Sequence[str | Sequence[str]], *, aggregation_strategy: str = ...) -> list[Tagged]: ...

    def tag(self, sentences: str | Sequence[str | Sequence[str]], *, aggregation_strategy: str = 'first') -> Any:
        """Tags of words, and the entities that they mark.

        Args:
          sentences: one text or several, split so that punctuation is apart from words; or lists of words.
          aggregation_strategy: how a word of several pieces gets its tag, as in transformers' pipeline: that of its
            'first' piece, for which models are trained here; of the 'average' of their probabilities; of the piece with
            the highest ('max'); or 'simple', each piece of a text is tagged by itself, in place of words.

        Returns:
          For each `{'words': …, 'tags': …, 'probabilities': …, 'offsets': …, 'entities': …}`. An entity has `type`,
          `text`, `start` and `end`, and as `score` the mean of its words' probabilities; `start` and `end` are
          characters of a text, or words of a list. `offsets`, characters of the words, are given for texts.

        Raises:
          UserError: a model that was not tuned to tag, or no such strategy.
        """
        each = [sentences] if isinstance(sentences, str) else sentences
        check_list('sentences', each, 'a text or a list')
        records = sentence_records(self.task, self._model.where, each)
        return like(sentences, tag_records(self._runner, records, aggregation_strategy))

    @overload
    def choose(self, context: str, endings: Sequence[str]) -> ChoiceAnswer: ...

    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[ChoiceAnswer]: ...

    def choose(self, context: Texts, endings: Sequence[str] | Sequence[Sequence[str]]) -> Any:
        """The best ending of each context.

        Returns:
          For each `{'prediction': its number, 'ending': …, 'probabilities': of all endings, …}`.

        Raises:
          UserError: a model that was not tuned to choose, or fewer than two endings.
        """
        each = [endings] if isinstance(context, str) else endings
        check_count('endings', each, several(context, 'context'))
        return self._answers(context, choice_records(self.task, self._model.where, several(context, 'context'), each))

    def _answers(self, asked: Any, records: Sequence[Any]) -> Any:
        return like(asked, answer_records(self._runner, records))
