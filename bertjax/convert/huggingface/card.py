"""The model card: README.md of an export."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bertjax.model.config import BertConfig

_HEAD = """---
{fields}
---

# {title}

A BERT of {parameters:,} parameters ({layers} layers, width {width}, {heads} heads), {trained} with bertjax.

## How to use

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained('{name}')
model = {architecture}.from_pretrained('{name}')
```
{pipeline}
## Intended use

{intended}

## Training data

{data}
"""
_PIPELINE = """
Or in a line:

```python
from transformers import pipeline

ask = pipeline('{tag}', model='{name}')
ask({arguments})
```
"""
# {the hub's pipeline tag: (the purpose of the model, the arguments of transformers' pipeline)}.
_USES = {
    'fill-mask': (
        'Filling masked words, and above all as the start of fine-tuning: classification, tagging, questions on a '
        'text. It does not write text, and its vectors are no sentence embeddings before they are trained as such.',
        "f'A sentence with a {ask.tokenizer.mask_token} in it.'",
    ),
    'text-classification': (
        'Giving a text, or a pair of texts, one of the labels that it was trained with, or a score.',
        "'A text to be judged.'",
    ),
    'token-classification': (
        'Marking the words of a text with the labels that it was trained with.',
        "'A text whose words are to be marked.'",
    ),
    'question-answering': (
        'Finding the answer to a question in a text that holds it; it knows nothing beside that text.',
        "question='What is asked?', context='The text that holds the answer.'",
    ),
    'feature-extraction': (
        'Features of texts, and the start of fine-tuning: it has no head.',
        "'A text.'",
    ),
    'multiple-choice': ('Choosing among given endings of a text.', ''),
}
_LIMITS = """
## Limitations

It has learned from its training text what is there, errors and prejudices too, and says it with confidence. Texts of
more than {positions} pieces have to be cut{language}. Its figures are of one run, with one seed: before it decides
anything of weight, try it on examples of your own.
"""


def _fields(
    title: str, pipeline: str, about: Mapping[str, str], figures: Mapping[str, Mapping[str, float | None]]
) -> str:
    """Returns the YAML header of the card, which the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData  # slow to import, and needed only at the end of a run

    fields = {name: about.get(name) or None for name in ('license', 'base_model')}
    lists = {name: about[name].split(',') if about.get(name) else None for name in ('language', 'datasets')}
    measured = [
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
        library_name='transformers',
        pipeline_tag=pipeline or 'fill-mask',
        tags=['bert', 'bertjax'],
        **fields,
        **lists,
        **({'model_name': title, 'eval_results': measured} if measured else {}),
    ).to_yaml()


def _cell(value: Any) -> str:
    text = f'{value:.6g}' if isinstance(value, float) else str(value)
    return text.replace('|', '\\|').replace('\n', ' ')


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f'| {_cell(name)} | {_cell(value)} |' for name, value in facts.items()]
    return '\n'.join(['| | |', '|---|---|', *rows]) + '\n'


def model_card(
    config: BertConfig,
    architecture: str,
    card: Mapping[str, Any],
    parameters: int,
    *,
    pipeline: str = '',
    about: Mapping[str, str] = MappingProxyType({}),
    figures: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
) -> str:
    """Returns the text of the card.

    Args:
      config: The config of the model.
      architecture: The class of transformers that loads the model.
      card: Training facts in display order; a mapping as a value becomes a section with a table. The key 'title' is the
        heading, 'name' the model's name on the hub, if it has one, and 'made' the action of bertjax, if it was not
        training. No value may differ between equal runs (no time, no path).
      parameters: The number of parameters.
      pipeline: The hub's pipeline tag of a task's model; '' for a pre-trained model.
      about: Facts that only the user knows, from config.card: license, language, datasets, base_model; '' is left out.
      figures: The metrics of a task's model by split; the hub shows them if `about` names exactly one data set.
    """
    header_keys = ('title', 'name', 'made')
    facts = {name: value for name, value in card.items() if name not in header_keys and not isinstance(value, Mapping)}
    sections = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    title, tag = card.get('title', 'BERT'), pipeline or 'fill-mask'
    name = card.get('name') or 'PATH'
    intended, arguments = _USES.get(tag, ('The task that it was tuned to.', ''))
    text = _HEAD.format(
        title=title,
        parameters=parameters,
        fields=_fields(title, pipeline, about, figures),
        trained=card.get('made', 'fine-tuned' if pipeline else 'pre-trained'),
        layers=config.num_layers,
        width=config.width,
        heads=config.num_heads,
        architecture=architecture,
        name=name,
        pipeline=_PIPELINE.format(tag=tag, name=name, arguments=arguments) if arguments else '',
        intended=intended,
        data=_data(about),
    )
    if config.causal and not pipeline:
        text += '\nAttention is left to right (`is_decoder`), and the loss is on masked positions.\n'
    for name, table in {**({'Training': facts} if facts else {}), **sections}.items():
        text += f'\n## {name}\n\n{_table(table)}'
    language = about.get('language', '')
    other = f', and other languages than {language} are foreign to it' if language else ''
    return text + _LIMITS.format(positions=f'{config.max_positions:,}', language=other)


def _data(about: Mapping[str, str]) -> str:
    """Describes the training data from the user's facts."""
    sets = [name for name in about.get('datasets', '').split(',') if name]
    links = ', '.join(f'[{name}](https://huggingface.co/datasets/{name})' for name in sets)
    base = about.get('base_model')
    lines = [f'Trained on {links}.' if sets else 'Its maker has not named it.']
    lines += [f'It started from [{base}](https://huggingface.co/{base}).'] if base else []
    lines += [f'Language: {about["language"]}.'] if about.get('language') else []
    return ' '.join(lines)
