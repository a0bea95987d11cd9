"""The end of a pre-training: the export, summary.json, and what a person wants to see on the screen."""

import json
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from rich.console import Console
from rich.table import Table

from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.orbax import export_orbax
from bertjax.data.loader import Examples
from bertjax.files.atomic import write_atomic
from bertjax.losses import PRETRAINING
from bertjax.metrics.softmax import softmax
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.text.tokenizer import Tokenizer
from bertjax.train.step import make_forward
from bertjax.writers.console import print_places, shown

SHOWN = ('loss', 'mlm_loss', 'mlm_accuracy', 'perplexity', 'nsp_loss', 'nsp_accuracy')
_CONTEXT = 8  # tokens shown on either side of a filled mask
_FILLED = 4


def finish_pretraining(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    model: BertConfig,
    tokenizer: Tokenizer,
    params: Any,
    heldout: Examples | None,
) -> None:
    """Exports, writes summary.json, prints the summary.

    Args:
      folder: the workdir.
      config: the resolved config.
      model, tokenizer, params: trained.
      heldout: examples of which some masks are filled; None for none.
    """
    rows = heldout_rows(folder / 'metrics.jsonl')
    if rows and rows[-1]['step'] != config['steps']:
        logging.warning('%s ends at step %d of %d.', folder / 'metrics.jsonl', rows[-1]['step'], config['steps'])
    if config['export']:
        export_pretraining(folder, config, model, tokenizer, params, rows)
    filled = list(_filled_masks(params, model, tokenizer, heldout)) if heldout is not None else []
    summary = {
        'steps': config['steps'],
        'heldout_first': rows[0] if rows else None,
        'heldout_last': rows[-1] if rows else None,
        'filled_masks': filled,
        'export': 'export/hf' if config['export'] else None,
    }
    write_atomic(folder / 'summary.json', json.dumps(summary, indent=2, ensure_ascii=False) + '\n')
    _print(folder, rows, filled, exported=config['export'])


def heldout_rows(metrics: pathlib.Path) -> list[dict[str, Any]]:
    """The held-out rows of a metrics.jsonl, in order; a last line that was cut off is left out."""
    if not metrics.exists():
        return []
    with metrics.open(encoding='utf-8') as file:
        return [row for row in (json.loads(line) for line in file if line.endswith('\n')) if row['split'] == 'heldout']


def export_pretraining(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    model: BertConfig,
    tokenizer: Tokenizer,
    params: Any,
    rows: list[dict[str, Any]],
) -> None:
    """export/hf and export/orbax; `rows` are the held-out rows, of which the model card has the last."""
    card = _model_card_facts(config, rows)
    export_huggingface(params, model, tokenizer, folder / 'export' / 'hf', card=card, about=config.get('card', {}))
    export_orbax(params, model, folder / 'export' / 'orbax')


def _model_card_facts(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Training facts for the model card; nothing that differs between two equal runs."""
    optimizer = config['optimizer']
    facts = {
        'steps': config['steps'],
        'batch size': config['batch_size'],
        'sequence length': config['seq_len'],
        'learning rate': config['learning_rate'],
        'optimiser': f'{optimizer["name"]}, weight decay {optimizer["weight_decay"]}',
        'pairs': config['pairs']['mode'],
        'masks': f'{config["masking"]["rate"]:.0%} of positions, unit {config["masking"]["unit"]}',
        'seed': config['seed'],
        'store': config['fingerprints']['store'],
        'tokenizer': config['fingerprints']['tokenizer'],
    }
    for number, phase in enumerate(config['phases']):
        facts[f'phase {number}'] = ', '.join(f'{key} {value}' for key, value in phase.items())
    card: dict[str, Any] = {'title': 'BERT trained with bertjax', **facts}
    if rows:
        card['Held-out text'] = {name: rows[-1][name] for name in SHOWN if rows[-1].get(name) is not None}
    return card


def _filled_masks(params: Any, model: BertConfig, tokenizer: Tokenizer, heldout: Examples) -> Iterator[dict[str, Any]]:
    """What the model predicts at a mask of some held-out examples, beside the original token."""
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
        yield {
            'before': f'… {tokenizer.decode(keep(left))}',
            'after': f'{tokenizer.decode(keep(right))} …',
            'filled': tokenizer.pieces[best],
            'probability': round(float(softmax(logits[row, p])[best]), 4),
            'was': tokenizer.pieces[int(batch['masked_ids'][row, p])],
        }


def _print(folder: pathlib.Path, rows: list[dict[str, Any]], filled: list[dict[str, Any]], *, exported: bool) -> None:
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
    places = {
        'export/hf': 'for transformers: from_pretrained(...)',
        'export/orbax': 'the parameters for other JAX programs',
        'checkpoints': 'to continue: start the same command again, with more --config.steps',
        'metrics.jsonl': 'every figure; also in tensorboard/ and summary.json',
        'store': 'the text as token ids',
        'tokenizer': 'the vocabulary',
    }
    print_places(console, folder, places, exported=exported)
    recipe = next((argument for argument in sys.argv if argument.startswith('--config=')), '--config=FILE')
    command = f'python -m bertjax.main {recipe} --workdir={folder}'
    console.print('what to run next', style='bold')
    console.print(f'  {command} --config.run=plot      a picture of the learning curve', markup=False)
    own = "--workdir=out/mine --config.corpus='texts/*.txt'"
    console.print(f'  python -m bertjax.main {recipe} {own}      the same on your own text', markup=False)
