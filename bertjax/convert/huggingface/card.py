"""Composes the model card, the README.md of an export."""

from collections.abc import Mapping
from typing import Any

from bertjax.convert.content import ExportContent

_TEMPLATE = """---
{fields}
---

# {title}

A BERT of {parameters:,} parameters ({layers} layers, width {width}, {heads} heads), {trained} with bertjax.

## How to use

```python
{code}
```
{pipeline}
## Intended use

{intended}

## Training data

{data}
"""
_TRANSFORMERS = """from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained('{name}')
model = {architecture}.from_pretrained('{name}')"""
_EMBEDDINGS = """queries = model.encode_query(['A query.'])
documents = model.encode_document(['A text.', 'Another text.'])
print(model.similarity(queries, documents))"""
# {class of sentence-transformers: code that uses `model`, an instance of this class}.
_SENTENCE_CLASSES = {
    'SentenceTransformer': _EMBEDDINGS,
    'MultiVectorEncoder': _EMBEDDINGS,
    'CrossEncoder': "print(model.rank('A query.', ['A text.', 'Another text.']))",
}
_PIPELINE = """
Or with a pipeline:

```python
from transformers import pipeline

ask = pipeline('{tag}', model='{name}')
ask({arguments})
```
"""
# {the hub's pipeline tag: (the purpose of the model, the arguments of a call of the pipeline)}.
_USES = {
    'fill-mask': (
        'Fine-tuning on tasks such as classification, tagging and question answering, and filling masked words. The '
        'model does not generate text. Its vectors are not sentence embeddings unless it is fine-tuned for them.',
        "f'A sentence with a {ask.tokenizer.mask_token} in it.'",
    ),
    'text-classification': (
        'Classifying or scoring a text or a pair of texts, with the labels that the model was trained on.',
        "'A text to classify.'",
    ),
    'token-classification': (
        'Tagging the words of a text with the labels that the model was trained on.',
        "'A text whose words are to be tagged.'",
    ),
    'question-answering': (
        'Extracting the answer to a question from a given text. The model has no other source of knowledge.',
        "question='A question?', context='A text that contains the answer.'",
    ),
    'feature-extraction': (
        'Computing features of texts, and fine-tuning. The model has no head.',
        "'A text.'",
    ),
    'text-ranking': ('Scoring a query with each of several texts, to rank the texts.', ''),
    'sentence-similarity': ('Comparing texts by their similarity, and searching for texts with a query.', ''),
    'multiple-choice': ('Choosing the best of several endings of a text.', ''),
}
_LIMITATIONS = """
## Limitations

The model may reproduce errors and biases of its training data{confidence}. Texts of
more than {positions} tokens must be truncated.{language} The reported metrics are from one run with one seed. Evaluate
the model on your own examples before you rely on its predictions.
"""


def _fields(
    title: str, library: str, pipeline: str, about: Mapping[str, str], figures: Mapping[str, Mapping[str, float | None]]
) -> str:
    """Returns the YAML header of the card, which the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData  # The import is slow, and is needed only at the end of a run.

    fields = {name: about.get(name) or None for name in ('license', 'base_model')}
    lists = {name: about[name].split(',') if about.get(name) else None for name in ('language', 'datasets')}
    eval_results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=about['datasets'],
            dataset_name=about['datasets'],
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
        )
        for split, values in (figures if len(lists['datasets'] or ()) == 1 else {}).items()
        for metric, value in values.items()
        if value is not None
    ]
    return ModelCardData(
        library_name=library,
        pipeline_tag=pipeline or 'fill-mask',
        tags=['bert', 'bertjax'],
        **fields,
        **lists,
        **({'model_name': title, 'eval_results': eval_results} if eval_results else {}),
    ).to_yaml()


def _cell(value: Any) -> str:
    text = f'{value:.6g}' if isinstance(value, float) else str(value)
    return text.replace('|', '\\|').replace('\n', ' ')


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f'| {_cell(name)} | {_cell(value)} |' for name, value in facts.items()]
    return '\n'.join(['| | |', '|---|---|', *rows]) + '\n'


def model_card(content: ExportContent, architecture: str, parameters: int, pipeline: str) -> str:
    """Returns the text of the card.

    Args:
      content: The exported model. Its `card` has facts about the training, in display order. A value that is a mapping
        becomes a section with a table. Three optional keys are not facts: 'title' is the heading, 'name' is the model's
        name on the hub, and 'made' replaces the word 'pre-trained' or 'fine-tuned'. Equal runs must give equal cards,
        so no value may be a time or a path. The hub shows the `figures` if `about` names exactly one data set.
      architecture: The class of transformers that loads the model.
      parameters: The number of parameters.
      pipeline: The hub's pipeline tag; '' for a pre-trained model with an MLM head.
    """
    config, card, about = content.config, content.card, content.about
    sentence_class = content.head.sentence_class if content.head else ''
    header_keys = ('title', 'name', 'made')
    facts = {name: value for name, value in card.items() if name not in header_keys and not isinstance(value, Mapping)}
    sections = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    title, tag = card.get('title', 'BERT'), pipeline or 'fill-mask'
    name = card.get('name') or 'PATH'
    intended, arguments = _USES.get(tag, ('The task that the model was fine-tuned on.', ''))
    code, library = _TRANSFORMERS.format(architecture=architecture, name=name), 'transformers'
    if sentence_class:
        code = f"from sentence_transformers import {sentence_class}\n\nmodel = {sentence_class}('{name}')\n"
        code, library = code + _SENTENCE_CLASSES[sentence_class], 'sentence-transformers'
    text = _TEMPLATE.format(
        title=title,
        parameters=parameters,
        fields=_fields(title, library, pipeline, about, content.figures),
        trained=card.get('made', 'fine-tuned' if pipeline else 'pre-trained'),
        layers=config.num_layers,
        width=config.width,
        heads=config.num_heads,
        code=code,
        pipeline=_PIPELINE.format(tag=tag, name=name, arguments=arguments) if arguments else '',
        intended=intended,
        data=_data(about),
    )
    if config.causal and not pipeline:
        text += '\nAttention is causal, from left to right (`is_decoder`). The loss is computed at masked positions.\n'
    for name, table in {**({'Training': facts} if facts else {}), **sections}.items():
        text += f'\n## {name}\n\n{_table(table)}'
    language = about.get('language', '')
    other = f' The model was not trained on languages other than {language}.' if language else ''
    confidence = '' if sentence_class else ', and its probabilities may be too confident'
    return text + _LIMITATIONS.format(positions=f'{config.max_positions:,}', language=other, confidence=confidence)


def _data(about: Mapping[str, str]) -> str:
    """Returns sentences about the data sets, the base model and the language that `about` names."""
    sets = [name for name in about.get('datasets', '').split(',') if name]
    links = ', '.join(f'[{name}](https://huggingface.co/datasets/{name})' for name in sets)
    base = about.get('base_model')
    lines = [f'Trained on {links}.' if sets else 'The training data were not specified.']
    lines += [f'Training started from [{base}](https://huggingface.co/{base}).'] if base else []
    lines += [f'Language: {about["language"]}.'] if about.get('language') else []
    return ' '.join(lines)
