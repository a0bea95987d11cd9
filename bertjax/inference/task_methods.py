"""The methods of `api.Bert` that use a fine-tuned model. They convert Python objects to records of the model's task."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NotRequired, TypedDict, overload

from bertjax.config.ranges import format_value
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.inference.arguments import Texts, as_pair_lists, as_text_list, check_count, check_list, match_input
from bertjax.inference.runner import Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.late_interaction.task import LateInteractionTask
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reranking.task import RerankTask
from bertjax.tasks.sentence.task import TextTask
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.files import split_words
from bertjax.tasks.tagging.predictions import STRATEGIES, aggregate, predict_tags
from bertjax.tasks.tagging.task import TaggingTask, Tags
from bertjax.tasks.task import Outputs, Task
from bertjax.training.step import make_forward


class Label(TypedDict, total=False):
    """The result of a classification, or of a regression, which sets only `score`.

    A classification sets `probabilities` and `label` or, if a text may have several labels, `labels`.
    """

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float


class Answer(TypedDict):
    """An answer. `start` and `end`, its characters in the context, are None for no answer.

    `null_odds` is present only for models of SQuAD 2.0: the score of no answer minus the score of the best answer.
    """

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
    """The tags of words. `entities` is present only for tags of a scheme such as BIO, `offsets` only for texts."""

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
          UserError: The model was not fine-tuned on a classification or regression task, or was trained on single texts
            and gets pairs, or the reverse.
        """
        return match_input(texts, answer_records(self._runner, text_records(self._model, texts, pairs)))

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
        records = [SquadQuestion(str(i), *pair) for i, pair in enumerate(pairs)]
        return match_input(question, answer_records(self._runner, records))

    @overload
    def tag(self, sentences: str, *, aggregation_strategy: str = ...) -> TaggedWords: ...

    @overload
    def tag(
        self, sentences: Sequence[str | Sequence[str]], *, aggregation_strategy: str = ...
    ) -> list[TaggedWords]: ...

    def tag(self, sentences: str | Sequence[str | Sequence[str]], *, aggregation_strategy: str = 'first') -> Any:
        """Tags words and extracts the entities.

        Args:
          sentences: One text or several, or lists of words. Texts are split into words and punctuation. A model with
            `task.context` also reads the neighboring sentences of the same document; a blank sentence ends a document.
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
        return match_input(context, answer_records(self._runner, choice_records(self._model, contexts, endings)))


def answer_records(runner: Runner, records: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the rows that run=predict writes for the records, in order."""
    if not records:
        return []
    task = runner.model.task
    return list(task.rows(records, task.predictions(records, *_outputs(runner, records))))


def _outputs(runner: Runner, records: Sequence[Any]) -> tuple[Features, Outputs]:
    """Returns the features of records, and the outputs for the features' rows."""
    model, task = runner.model, runner.model.task
    features = task.features(records, model.tokenizer, training=False)
    objective = task.objective
    outputs = runner.run(
        'task',
        functools.partial(make_forward, objective=objective),
        features,
        inputs=objective.inputs,
        per_token=task.head.per_token,
        title=task.name,
    )
    return features, outputs


def tag_sentences(runner: Runner, sentences: Sequence[str | Sequence[str]], strategy: str) -> list[dict[str, Any]]:
    """Tags texts or lists of words by a strategy of tasks/tagging/predictions.py, and returns the rows of the task.

    The model does not read sentences without words; their rows have empty lists. Raises a UserError for an unknown
    strategy, for 'simple' with a list of words, and for a word that is not a text.
    """
    records, document = [], 0
    for i, sentence in enumerate(sentences):
        where = f'sentences[{i}]'
        if isinstance(sentence, str):
            words, offsets = split_words(sentence)
            records.append(Sentence(where, words, None, document, text=sentence, offsets=offsets))
        else:
            records.append(Sentence(where, tuple(as_text_list(sentence, where)), None, document))
        document += not len(sentence.strip() if isinstance(sentence, str) else sentence)  # as a blank line of a file
    if strategy not in STRATEGIES:
        expected = 'one of ' + ', '.join(STRATEGIES)
        raise UserError('aggregation_strategy', format_value(strategy), expected, "omit it for 'first'")
    if strategy == 'simple' and any(record.text is None for record in records):
        raise UserError('aggregation_strategy', "'simple' for a list of words", 'a text', 'pass the text as a string')
    nonempty = [record for record in records if record.words]
    rows: Iterator[dict[str, Any]] = iter(())
    if nonempty:
        task, (features, outputs) = runner.model.task, _outputs(runner, nonempty)
        logits = outputs['token_logits']
        nonempty, logits = aggregate(nonempty, features, logits, runner.model.tokenizer, strategy)
        rows = task.rows(nonempty, predict_tags(logits, task.labels, plain=task.plain))
    return [next(rows if record.words else runner.model.task.rows([record], [Tags((), ())])) for record in records]


def text_records(model: LoadedModel, texts: Texts, pairs: Texts | None) -> list[Any]:
    """Makes records of texts or pairs. Raises a UserError if the model's task has other inputs."""
    first_texts, second_texts = as_pair_lists(texts, pairs)
    check_kind(model, TextTask)
    task = model.task
    if pairs is None and len(task.text_columns) == 2:
        raise UserError(model.where, 'single texts', f'pairs, as in {task.name}', 'pass the second texts too')
    if pairs is not None and task.trained_texts == 1:
        expected, fix = f'single texts, as in {task.name}', 'give a model that was trained on pairs'
        raise UserError(model.where, 'pairs', expected, fix)
    columns = [first_texts] if second_texts is None else [first_texts, second_texts]
    return [task.example(Row(f'texts[{i}]', cells)) for i, cells in enumerate(zip(*columns, strict=True))]


def score_pairs(runner: Runner, texts: Sequence[str], pairs: Sequence[str]) -> list[float] | None:
    """Scores N pairs of a query and a text with a reranker, a late-interaction model or a regression of pairs.

    Returns N scores, higher for more relevant texts, or None if the model does not score pairs. The scores of rerankers
    and late-interaction models equal those of CrossEncoder and MultiVectorEncoder in sentence-transformers. Raises a
    UserError for a regression of single texts.
    """
    task = runner.model.task
    if isinstance(task, TextTask) and task.regression:
        records = text_records(runner.model, texts, pairs)
    elif isinstance(task, RerankTask | LateInteractionTask):
        records = [TextExample('scored', pair) for pair in zip(texts, pairs, strict=True)]
    else:
        return None
    return [row['score'] for row in answer_records(runner, records)]


def choice_records(model: LoadedModel, contexts: Sequence[str], endings: Sequence[Sequence[str]]) -> list[Any]:
    """Makes records of contexts and endings. Raises a UserError for another kind of task, or for a single ending."""
    check_kind(model, MultipleChoiceTask)
    records = []
    for i, (context, choices) in enumerate(zip(contexts, endings, strict=True)):
        texts = as_text_list(choices, f'endings[{i}]')
        if isinstance(choices, str) or len(texts) < 2:
            fix = 'pass the endings to choose from'
            raise UserError(f'endings[{i}]', format_value(choices), 'a list of at least two endings', fix)
        records.append(ChoiceQuestion(f'contexts[{i}]', context, '', tuple(texts), None))
    return records


def check_kind(model: LoadedModel, kind: type[Task]) -> None:
    """Raises a UserError that names the method for the model's task if this task is not an instance of `kind`."""
    if isinstance(model.task, kind):
        return
    found, fix = 'a model that was not fine-tuned on a task', 'fine-tune it first, or name a fine-tuned model'
    if model.task:
        found = f'a model for {model.task.results}'
        fix = f'use its method {model.task.method}' if model.task.method else fix
    raise UserError(model.where, found, f'a model for {kind.results} (method {kind.method})', fix)
