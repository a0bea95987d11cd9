"""The model card: README.md of an export."""

from collections.abc import Mapping
from typing import Any

from bertjax.model.config import BertConfig

_HEAD = """---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- bert
- bertjax
---

# {title}

A BERT of {parameters:,} parameters ({layers} layers, width {width}, {heads} heads), {trained} with bertjax.

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained('PATH')
model = {architecture}.from_pretrained('PATH')
```
"""


def _cell(value: Any) -> str:
    text = f'{value:.6g}' if isinstance(value, float) else str(value)
    return text.replace('|', '\\|').replace('\n', ' ')


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f'| {_cell(name)} | {_cell(value)} |' for name, value in facts.items()]
    return '\n'.join(['| | |', '|---|---|', *rows]) + '\n'


def model_card(
    config: BertConfig, architecture: str, card: Mapping[str, Any], parameters: int, *, pipeline: str = ''
) -> str:
    """Text of the card.

    Args:
      config: of the model.
      architecture: transformers' class that loads it.
      card: training facts in display order; a value that is a mapping becomes a section with its own table. The key
        'title' is the heading. Nothing in it may differ between equal runs (no time, no path).
      parameters: their number.
      pipeline: the hub's pipeline tag of a task's model; '' for a pre-trained one.
    """
    facts = {name: value for name, value in card.items() if name != 'title' and not isinstance(value, Mapping)}
    sections = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    text = _HEAD.format(
        title=card.get('title', 'BERT'),
        parameters=parameters,
        pipeline=pipeline or 'fill-mask',
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
