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

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained('PATH')
model = {architecture}.from_pretrained('PATH')
```
"""


def _fields(
    title: str, pipeline: str, about: Mapping[str, str], figures: Mapping[str, Mapping[str, float | None]]
) -> str:
    """The YAML in front of the card, which the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData  # slow to import, and needed at the end of a run only

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
    """Text of the card.

    Args:
      config: of the model.
      architecture: transformers' class that loads it.
      card: training facts in display order; a value that is a mapping becomes a section with its own table. The key
        'title' is the heading. Nothing in it may differ between equal runs (no time, no path).
      parameters: their number.
      pipeline: the hub's pipeline tag of a task's model; '' for a pre-trained one.
      about: what only its maker can know, config.card: license, language, datasets, base_model; '' is left out.
      figures: of a task's model, by split; the hub shows them where `about` names the one data set that they are of.
    """
    facts = {name: value for name, value in card.items() if name != 'title' and not isinstance(value, Mapping)}
    sections = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    title = card.get('title', 'BERT')
    text = _HEAD.format(
        title=title,
        parameters=parameters,
        fields=_fields(title, pipeline, about, figures),
        trained='fine-tuned' if pipeline else 'pre-trained',
        layers=config.num_layers,
        width=config.width,
        heads=config.num_heads,
        architecture=architecture,
    )
    if config.causal and not pipeline:
        text += '\nAttention is left to right (`is_decoder`), and the loss is on masked positions.\n'
    for name, table in {**({'Training': facts} if facts else {}), **sections}.items():
        text += f'\n## {name}\n\n{_table(table)}'
    return text
