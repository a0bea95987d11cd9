"""The methods of `api.Bert` that use a model fine-tuned on a task."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, overload

from bertjax.inference.arguments import Texts, as_text_list, check_count, check_list, match_input
from bertjax.inference.runner import Runner
from bertjax.inference.tasks import answer_records, check_kind, choice_records, tag_sentences, text_records
from bertjax.loading.load_model import LoadedModel
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.task import TaggingTask
from bertjax.tasks.task import Task


class Label(TypedDict, total=False):
    """The result of a classification, or of a regression, which sets only `score`.

    A classification sets `probabilities` and `label` or, if a text may have several labels, `labels`.
    """

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float


class Answer(TypedDict):
    """An answer and its characters in the context, None for no answer. SQuAD 2.0's models also have `null_odds`."""

    id: str
    question: str
    answer: str
    start: int | None
    end: int | None
    probability: float
    null_odds: NotRequired[float]


class TaggedEntity(TypedDict):
    """An entity [start, end) in the characters of a text, or in the words of a list.

    `score` is the mean probability of the entity's words.
    """

    type: str
    start: int
    end: int
    text: str
    score: float


class TaggedWords(TypedDict):
    """The tags of words. `entities` needs a scheme such as BIO, and `offsets` a text."""

    words: Sequence[str]
    tags: Sequence[str]
    probabilities: Sequence[float]
    entities: NotRequired[list[TaggedEntity]]
    offsets: NotRequired[Sequence[tuple[int, int]]]


class ChoiceAnswer(TypedDict):
    """The best ending for the context `prompt`. `prediction` is its index in `endings`. `start` is ''."""

    prompt: str
    start: str
    endings: Sequence[str]
    prediction: int
    ending: str
    probabilities: Sequence[float]


class TaskMethods:
    """Methods that classify texts, answer questions, tag words and choose endings."""

    task: Task | None
    _model: LoadedModel
    _runner: Runner

    @overload
    def classify(self, texts: str, pairs: str | None = ...) -> Label: ...

    @overload
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[Label]: ...

    def classify(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Predicts the labels or scores of texts or text pairs.

        Returns:
          For each text, `{'label': …, 'probabilities': {label: …}}`. For a multi-label task, the dict has `labels` in
          place of `label`. For a regression, it is `{'score': …}`.

        Raises:
          UserError: The model was not fine-tuned on a classification or regression task.
        """
        return self._answers(texts, self._text_records(texts, pairs))

    @overload
    def answer(self, question: str, context: str) -> Answer: ...

    @overload
    def answer(self, question: Sequence[str], context: Sequence[str]) -> list[Answer]: ...

    def answer(self, question: Texts, context: Texts) -> Any:
        """Answers each question from its context.

        Returns:
          For each question, `{'answer': …, 'start': …, 'end': …, 'probability': …, …}`; see `Answer`. `start`
          and `end` are character offsets in the context, or None for no answer.

        Raises:
          UserError: The model was not fine-tuned on a task like SQuAD.
        """
        questions, contexts = as_text_list(question, 'question'), as_text_list(context, 'context')
        check_count('context', contexts, questions)
        check_kind(self._model, SquadTask)
        pairs = zip(questions, contexts, strict=True)
        return self._answers(question, [SquadQuestion(str(i), *pair) for i, pair in enumerate(pairs)])

    @overload
    def tag(self, sentences: str, *, aggregation_strategy: str = ...) -> TaggedWords: ...

    @overload
    def tag(
        self, sentences: Sequence[str | Sequence[str]], *, aggregation_strategy: str = ...
    ) -> list[TaggedWords]: ...

    def tag(self, sentences: str | Sequence[str | Sequence[str]], *, aggregation_strategy: str = 'first') -> Any:
        """Tags words and extracts the entities.

        Args:
          sentences: One text or several, or lists of words. Texts are split into words and punctuation.
          aggregation_strategy: The method that tags a word of several pieces, as in transformers' pipeline. 'first'
            uses the first piece, as in training. 'average' averages the probabilities of the pieces. 'max' uses the
            piece with the highest probability. 'simple' tags pieces instead of words.

        Returns:
          For each sentence, `{'words': …, 'tags': …, 'probabilities': …, 'offsets': …, 'entities': …}`. An entity has
          `type`, `text`, `start`, `end` and `score`, the mean probability of its words. `start` and `end` are character
          offsets in a text, or word indices in a list. `entities` is present only if the tags follow a scheme such as
          BIO. `offsets`, the character spans of the words, is present only for texts.

        Raises:
          UserError: The model is not for tagging, the strategy is unknown, or it is 'simple' for a list of words.
        """
        values = [sentences] if isinstance(sentences, str) else sentences
        check_list('sentences', values, 'a text or a list')
        check_kind(self._model, TaggingTask)
        return match_input(sentences, tag_sentences(self._runner, values, aggregation_strategy))

    @overload
    def choose(self, context: str, endings: Sequence[str]) -> ChoiceAnswer: ...

    @overload
    def choose(self, context: Sequence[str], endings: Sequence[Sequence[str]]) -> list[ChoiceAnswer]: ...

    def choose(self, context: Texts, endings: Sequence[str] | Sequence[Sequence[str]]) -> Any:
        """Chooses the best ending for each context.

        Returns:
          For each context, `{'prediction': …, 'ending': …, 'probabilities': …, …}`. `prediction` is the index of the
          best ending, and `probabilities` has one value per ending.

        Raises:
          UserError: The model was not fine-tuned on multiple choice, or a context has fewer than two endings.
        """
        endings = [endings] if isinstance(context, str) else endings
        contexts = as_text_list(context, 'context')
        check_count('endings', endings, contexts)
        return self._answers(context, choice_records(self._model, contexts, endings))

    def _text_records(self, texts: Texts, pairs: Texts | None) -> list[Any]:
        seconds = None if pairs is None else as_text_list(pairs, 'pairs')
        check_count('pairs', seconds, as_text_list(texts))
        return text_records(self._model, as_text_list(texts), seconds)

    def _answers(self, texts: Any, records: Sequence[Any]) -> Any:
        return match_input(texts, answer_records(self._runner, records))
