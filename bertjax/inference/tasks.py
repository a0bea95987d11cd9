"""What a model that was tuned to a task answers: records of a program's own objects, and its predictions for them."""

from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.config.ranges import format_value
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.inference.arguments import several
from bertjax.inference.runner import Runner
from bertjax.tasks.choice.files import ChoiceQuestion as Choices
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.sentence.task import TextTask
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.aggregation import STRATEGIES, aggregated
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.predictions import tags_of_words
from bertjax.tasks.tagging.raw_text import split_words
from bertjax.tasks.tagging.task import TaggingTask, Tags
from bertjax.tasks.task import Outputs, Task
from bertjax.train.step import make_forward


def answer_records(runner: Runner, records: Sequence[Any]) -> list[dict[str, Any]]:
    """What run=predict writes of each record, in their order."""
    if not records:
        return []
    task = runner.model.task
    return list(task.rows(records, task.predictions(records, *_outputs(runner, records))))


def _outputs(runner: Runner, records: Sequence[Any]) -> tuple[Features, Outputs]:
    """The features of records, and what the model gives for their rows."""
    model, task = runner.model, runner.model.task
    features = task.features(records, model.tokenizer, training=False)
    objective = task.objective
    outputs = runner.run(
        'task',
        make_forward(model.module, objective),
        features,
        inputs=objective.inputs,
        per_token=task.head.per_token,
        title=task.name,
    )
    return features, outputs


def tag_records(runner: Runner, records: Sequence[Sentence], strategy: str) -> list[dict[str, Any]]:
    """As `answer_records`, by a strategy of aggregation.py; a sentence without words, which the model does not see, has
    empty lists.

    Raises:
      UserError: no such strategy, or 'simple' for words, whose pieces have no places in a text.
    """
    if strategy not in STRATEGIES:
        expected = 'one of ' + ', '.join(STRATEGIES)
        raise UserError('aggregation_strategy', format_value(strategy), expected, "leave it out for 'first'")
    if strategy == 'simple' and any(record.text is None for record in records):
        raise UserError('aggregation_strategy', "'simple' for a list of words", 'a text', 'give the text as it is')
    filled = [record for record in records if record.words]
    found: Iterator[dict[str, Any]] = iter(())
    if filled:
        task, (features, outputs) = runner.model.task, _outputs(runner, filled)
        logits = outputs['token_logits']
        filled, logits = aggregated(filled, features, logits, runner.model.tokenizer, strategy)
        found = task.rows(filled, tags_of_words(logits, task.labels, plain=task.plain))
    results = []
    for record in records:
        alone = found if record.words else runner.model.task.rows([record], [Tags((), ())])
        results.append(next(alone))
    return results


def text_records(task: Task | None, where: str, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Any]:
    """Records of a task that gives texts, or pairs of them, labels or scores.

    Raises:
      UserError: a model of another kind, or single texts where it takes pairs.
    """
    task = _of_kind(task, TextTask, where)
    if pairs is None and len(task.text_columns) == 2:
        raise UserError(where, 'single texts', f'pairs, as {task.name} has', 'give the second texts, too')
    columns = zip(texts, pairs, strict=True) if pairs is not None else ((text,) for text in texts)
    return [task.example(f'texts[{i}]', cells, None, '') for i, cells in enumerate(columns)]


def question_records(task: Task | None, where: str, questions: Sequence[str], contexts: Sequence[str]) -> list[Any]:
    """Records of questions about texts.

    Raises:
      UserError: a model of another kind.
    """
    _of_kind(task, SquadTask, where)
    return [SquadQuestion(str(i), *pair) for i, pair in enumerate(zip(questions, contexts, strict=True))]


def sentence_records(task: Task | None, where: str, sentences: Sequence[str | Sequence[str]]) -> list[Any]:
    """Records of sentences, each a raw text, or a list of words.

    Raises:
      UserError: a model of another kind.
    """
    _of_kind(task, TaggingTask, where)
    return [_sentence(f'sentences[{i}]', sentence, i) for i, sentence in enumerate(sentences)]


def _sentence(where: str, sentence: str | Sequence[str], document: int) -> Sentence:
    if not isinstance(sentence, str):
        return Sentence(where, tuple(several(sentence, where)), None, document=document)
    words, offsets = split_words(sentence)
    return Sentence(where, words, None, document=document, text=sentence, offsets=offsets)


def choice_records(
    task: Task | None, where: str, contexts: Sequence[str], endings: Sequence[Sequence[str]]
) -> list[Any]:
    """Records of a context with endings.

    Raises:
      UserError: a model of another kind, or fewer than two endings.
    """
    _of_kind(task, MultipleChoiceTask, where)
    records = []
    for i, (context, each) in enumerate(zip(contexts, endings, strict=True)):
        texts = several(each, f'endings[{i}]')
        if isinstance(each, str) or len(texts) < 2:
            raise UserError(
                f'endings[{i}]', format_value(each), 'a list of at least two', 'give what is to be chosen from'
            )
        records.append(Choices(f'contexts[{i}]', context, '', tuple(texts), None))
    return records


# The kinds of task: the method that asks them, and what they give.
_KINDS: tuple[tuple[type[Task], str, str], ...] = (
    (TextTask, 'classify', 'labels of texts'),
    (SquadTask, 'answer', 'answers to questions'),
    (TaggingTask, 'tag', 'tags of words'),
    (MultipleChoiceTask, 'choose', 'the best of several endings'),
)


def describe(task: Task) -> str:
    """What a task's model gives, in words."""
    return next((words for kind, _, words in _KINDS if isinstance(task, kind)), task.name)


def _of_kind(task: Task | None, kind: type[Task], where: str) -> Any:
    if isinstance(task, kind):
        return task
    method, wanted = next((method, words) for known, method, words in _KINDS if known is kind)
    own = next((method for known, method, _ in _KINDS if isinstance(task, known)), None)
    found = f'a model for {describe(task)}' if task else 'a model that was not tuned to a task'
    fix = f'use its method {own}' if own else 'fine-tune it first, or name a fine-tuned model'
    raise UserError(where, found, f'one for {wanted}, as {method} gives', fix)
