"""Predicts with a model fine-tuned on a task: converts Python objects to records of the task and runs the model."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.config.ranges import format_value
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.inference.arguments import as_text_list
from bertjax.inference.runner import Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.late_interaction.task import LateInteractionTask
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reranking.task import RerankTask
from bertjax.tasks.sentence.task import TextTask
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.files import split_words
from bertjax.tasks.tagging.predictions import STRATEGIES, aggregate, predict_tags
from bertjax.tasks.tagging.task import Tags
from bertjax.tasks.task import Outputs, Task
from bertjax.training.step import make_forward


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
    records = []
    for i, sentence in enumerate(sentences):
        where = f'sentences[{i}]'
        if isinstance(sentence, str):
            words, offsets = split_words(sentence)
            records.append(Sentence(where, words, None, document=i, text=sentence, offsets=offsets))
        else:
            records.append(Sentence(where, tuple(as_text_list(sentence, where)), None, document=i))
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


def text_records(model: LoadedModel, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Any]:
    """Makes records of texts or pairs. Raises a UserError if the model is for another kind of task or of texts."""
    check_kind(model, TextTask)
    task = model.task
    if pairs is None and len(task.text_columns) == 2:
        raise UserError(model.where, 'single texts', f'pairs, as in {task.name}', 'pass the second texts too')
    if pairs is not None and task.trained_texts == 1:
        expected, fix = f'single texts, as in {task.name}', 'give a model that was trained on pairs'
        raise UserError(model.where, 'pairs', expected, fix)
    columns = zip(texts, pairs, strict=True) if pairs is not None else ((text,) for text in texts)
    return [task.example(Row(f'texts[{i}]', cells)) for i, cells in enumerate(columns)]


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
        found = f'a model for {model.task.results or model.task.name}'
        fix = f'use its method {model.task.method}' if model.task.method else fix
    raise UserError(model.where, found, f'a model for {kind.results} (method {kind.method})', fix)
