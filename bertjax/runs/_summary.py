"""The end of a run: the export, summary.json, and what a person wants to see on the screen."""

import json
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.orbax import export_orbax
from bertjax.data.loader import Examples
from bertjax.files import write_atomic
from bertjax.losses import PRETRAINING
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.text.tokenizer import Tokenizer
from bertjax.train.step import make_forward
from bertjax.writers.console import shown

SHOWN = ('loss', 'mlm_loss', 'mlm_accuracy', 'perplexity', 'nsp_loss', 'nsp_accuracy')
_CONTEXT = 8  # tokens shown on either side of a filled mask
_FILLED = 4


def heldout_rows(metrics: pathlib.Path) -> list[dict[str, Any]]:
    """The held-out rows of a metrics.jsonl, in order."""
    if not metrics.exists():
        return []
    with metrics.open(encoding='utf-8') as file:
        return [row for row in map(json.loads, file) if row['split'] == 'heldout']


def model_card_facts(plan: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Training facts for the model card; nothing that differs between two equal runs."""
    optimizer = plan['optimizer']
    facts = {
        'steps': plan['steps'],
        'batch size': plan['batch_size'],
        'sequence length': plan['seq_len'],
        'learning rate': plan['learning_rate'],
        'optimiser': f'{optimizer["name"]}, weight decay {optimizer["weight_decay"]}',
        'pairs': plan['pairs']['mode'],
        'masks': f'{plan["masking"]["rate"]:.0%} of positions, unit {plan["masking"]["unit"]}',
        'seed': plan['seed'],
        'store': plan['fingerprints']['store'],
        'tokenizer': plan['fingerprints']['tokenizer'],
    }
    for number, phase in enumerate(plan['phases']):
        facts[f'phase {number}'] = ', '.join(f'{key} {value}' for key, value in phase.items())
    card: dict[str, Any] = {'title': 'BERT trained with bertjax', **facts}
    if rows:
        card['Held-out text'] = {name: rows[-1][name] for name in SHOWN if rows[-1].get(name) is not None}
    return card


def finish(
    config: ConfigDict,
    folder: pathlib.Path,
    plan: Mapping[str, Any],
    params: Any,
    model: BertConfig,
    tokenizer: Tokenizer,
    heldout: Examples | None,
) -> None:
    """Exports, writes summary.json, prints the summary."""
    rows = heldout_rows(folder / 'metrics.jsonl')
    if config.export:
        export_huggingface(params, model, tokenizer, folder / 'export' / 'hf', card=model_card_facts(plan, rows))
        export_orbax(params, model, folder / 'export' / 'orbax')
    filled = list(_filled_masks(params, model, tokenizer, heldout)) if heldout is not None else []
    summary = {
        'steps': plan['steps'],
        'heldout_first': rows[0] if rows else None,
        'heldout_last': rows[-1] if rows else None,
        'filled_masks': filled,
        'export': 'export/hf' if config.export else None,
    }
    write_atomic(folder / 'summary.json', json.dumps(summary, indent=2, ensure_ascii=False) + '\n')
    _print(folder, rows, filled, config)


def _filled_masks(params: Any, model: BertConfig, tokenizer: Tokenizer, heldout: Examples) -> Iterator[dict[str, Any]]:
    """What the model puts for a mask of some held-out examples, beside what stood there."""
    batch = heldout.batch(np.arange(_FILLED))
    logits = np.asarray(jax.jit(make_forward(BertForPreTraining(model), PRETRAINING))(params, batch)['mlm_logits'])
    for row in range(_FILLED):
        ids, positions = batch['input_ids'][row], batch['masked_positions'][row]
        hidden = [p for p in range(len(positions)) if ids[positions[p]] == tokenizer.mask_id]
        if not hidden:
            continue
        p = hidden[len(hidden) // 2]
        at = positions[p]
        left, right = ids[max(at - _CONTEXT, 1) : at], ids[at + 1 : at + 1 + _CONTEXT]
        keep = lambda part: [i for i in part if i not in (tokenizer.pad_id, tokenizer.cls_id)]  # noqa: E731
        best = int(logits[row, p].argmax())
        scores = np.exp(logits[row, p] - logits[row, p].max())
        yield {
            'before': f'… {tokenizer.decode(keep(left))}',
            'after': f'{tokenizer.decode(keep(right))} …',
            'filled': tokenizer.pieces[best],
            'probability': round(float(scores[best] / scores.sum()), 4),
            'was': tokenizer.pieces[int(batch['masked_ids'][row, p])],
        }


def _print(folder: pathlib.Path, rows: list[dict[str, Any]], filled: list[dict[str, Any]], config: ConfigDict) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if rows:
        table = Table(title='held-out text', title_justify='left')
        for heading in ('', f'step {rows[0]["step"]}', f'step {rows[-1]["step"]}'):
            table.add_column(heading, justify='right' if heading else 'left')
        for name in SHOWN:
            if rows[-1].get(name) is not None:
                table.add_row(name.replace('_', ' '), shown(rows[0][name]), shown(rows[-1][name]))
        console.print(table)
    for item in filled:
        text = f'{item["before"]} [{item["filled"]}] {item["after"]}'
        console.print(f'{text}   (p {item["probability"]:.2f}, was: {item["was"]})', markup=False)
    console.print('\nwhere everything lies', style='bold')
    for name, what in (
        ('export/hf', 'for transformers: from_pretrained(...)' if config.export else ''),
        ('export/orbax', 'the parameters for other JAX programs' if config.export else ''),
        ('checkpoints', 'to continue: start the same command again, with more --config.steps'),
        ('metrics.jsonl', 'every figure; also in tensorboard/ and summary.json'),
        ('store', 'the text as token ids'),
        ('tokenizer', 'the vocabulary'),
    ):
        if what and (folder / name).exists():
            console.print(f'  {folder / name}  {what}', markup=False)
    recipe = next((argument for argument in sys.argv if argument.startswith('--config=')), '--config=FILE')
    command = f'python -m bertjax.main {recipe} --workdir={folder}'
    console.print('what to run next', style='bold')
    console.print(f'  {command} --config.run=plot      a picture of the learning curve', markup=False)
    own = "--workdir=out/mine --config.corpus='texts/*.txt'"
    console.print(f'  python -m bertjax.main {recipe} {own}      the same on your own text', markup=False)
