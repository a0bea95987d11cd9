"""The results of a pre-training run: the export, summary.json and the printed summary."""

import json
import pathlib
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.config.pretraining import UNSET
from bertjax.convert.content import ExportContent
from bertjax.data.loader import Examples
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import display_path
from bertjax.losses import PRETRAINING
from bertjax.metrics.softmax import softmax
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.parallel.distributed import fetch_to_all_hosts
from bertjax.pretrain.chance_baselines import ChanceBaselines, compute_chance_baselines
from bertjax.pretrain.heldout import PAIRS_SPLIT, group_rows_by_text
from bertjax.pretrain.run import Pretraining
from bertjax.terminal import BOXED, Console, make_table
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.health.goodput import read_goodput
from bertjax.training.step import make_forward
from bertjax.workdir import exports
from bertjax.workdir.exports import exported_model, push_export, write_exports
from bertjax.workdir.files import distillation_facts
from bertjax.writers.console import format_value, print_next_commands, print_output_files
from bertjax.writers.jsonl import read_rows

PRINTED_FIGURES = ('loss', 'mlm_loss', 'mlm_accuracy', 'perplexity')
PRINTED_FIGURES += ('nsp_loss', 'nsp_accuracy', 'sop_loss', 'sop_accuracy')
PRINTED_FIGURES += ('soft_loss', 'cosine_loss', 'hidden_loss', 'attention_loss', 'embeddings_loss')
# {file or folder in the workdir: its description}.
OUTPUT_FILES = {
    **exports.EXPORT_FOLDERS,
    'checkpoints': 'the state of the training',
    'metrics.jsonl': 'every figure; also in tensorboard/',
    'store': 'the text as token ids',
    'tokenizer': 'the vocabulary',
}
_CONTEXT = 8  # the number of tokens that are printed on each side of a filled mask
_NUM_FILLED = 4  # the maximum number of filled masks, one per example


def finish_pretraining(
    folder: pathlib.Path, training: Pretraining, params: Any, recipe: str, *, fill_masks: bool = True
) -> None:
    """Exports the trained parameters if config.export is set, writes summary.json and prints the summary.

    Args:
      recipe: The value of --config.
      fill_masks: Whether the summary shows filled masks of held-out examples.
    """
    settings, config, params = training.settings, training.resolved, fetch_to_all_hosts(params)
    model_config, tokenizer, heldout = training.model_config, training.tokenizer, training.heldout
    baselines = compute_chance_baselines(training.examples, settings.steps)
    all_rows = read_rows(folder / 'metrics.jsonl')
    rows = [row for row in all_rows if row['split'] == 'heldout']
    if settings.export:
        export_pretraining(folder, config, model_config, tokenizer, params, rows, settings.formats)
    filled = list(_filled_masks(params, model_config, tokenizer, heldout)) if fill_masks and heldout is not None else []
    texts = {name: (rows[0], rows[-1]) for name, rows in group_rows_by_text(all_rows).items()}
    pairs = [row for row in all_rows if row['split'] == PAIRS_SPLIT]
    goodput = read_goodput(folder)
    summary = {
        'steps': config['steps'],
        'heldout_first': rows[0] if rows else None,
        'heldout_last': rows[-1] if rows else None,
        **({'heldout_texts': {name: [first, last] for name, (first, last) in texts.items()}} if texts else {}),
        **({PAIRS_SPLIT: [pairs[0], pairs[-1]]} if pairs else {}),
        'filled_masks': filled,
        'export': f'export/{settings.formats[0]}' if settings.export else None,
        'goodput': goodput.facts() if goodput else None,  # the only value that differs between identical runs
    }
    write_atomic(folder / 'summary.json', json.dumps(summary, indent=2, ensure_ascii=False) + '\n')
    console = Console(highlight=False, soft_wrap=True)
    if rows:
        _print_heldout(console, rows, baselines)
    if texts:
        _print_texts(console, texts)
    if pairs:
        values = [f'{format_value(row["accuracy"])} at step {row["step"]}' for row in (pairs[0], pairs[-1])]
        error = format_value(pairs[-1]['standard_error'])
        console.print(f'accuracy on minimal pairs: {", ".join(values)} (standard error {error})', markup=False)
    if filled:
        title = 'filled masks: the most probable piece is in brackets, the true piece at the end of the line'
        console.print(f'\n{title}', style='bold')
    for item in filled:
        text = f'{item["before"]} [{item["filled"]}] {item["after"]}'
        console.print(f'{text}   (p {item["probability"]:.2f}, was: {item["was"]})', markup=False)
    if goodput:
        console.print(f'\ngoodput {goodput}', markup=False)
    files = dict(OUTPUT_FILES)
    if not config['budget']:
        key = 'epochs' if config['epochs'] > 0 else 'steps'
        files['checkpoints'] = f'to train longer, run the same command with a larger --config.{key}'
    print_output_files(console, folder, files, exported=config['export'])
    print_next_commands(console, _next_commands(folder, config, recipe))
    if config['export']:  # the upload is last, because it may fail
        push_export(folder, config['push_to'], private=config['push_private'])


def export_pretraining(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    model_config: BertConfig,
    tokenizer: Tokenizer,
    params: Any,
    rows: list[dict[str, Any]],
    formats: Collection[str],
) -> list[pathlib.Path]:
    """Writes a folder in WORKDIR/export/ for each of `formats`, and returns the folders.

    `rows` are the held-out rows of metrics.jsonl. The model card shows the last one.
    """
    distill = config.get('distill')
    # The hard loss trains both heads, and the soft loss only the MLM head.
    if distill and not distill['hard']:
        untrained = ('nsp',) if distill['soft'] else ('mlm', 'nsp')
        params = {part: tree for part, tree in params.items() if part not in untrained}
    content = ExportContent(
        module=BertForPreTraining(model_config),
        params=params,
        tokenizer=tokenizer,
        card=_model_card_facts(config, rows),
        about=config.get('card', {}),
    )
    return write_exports(content, folder, formats)


def _model_card_facts(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the facts about the training for the model card. Identical runs have the same facts."""
    optimizer, masking = config['optimizer'], config['masking']
    rate, final_rate, eval_rate = (masking[name] for name in ('rate', 'final_rate', 'eval_rate'))
    final = f' to {final_rate:.0%}' if final_rate > 0 else ''
    evaluated = f' ({eval_rate:.0%} in evaluation)' if final or eval_rate != rate else ''
    facts = {
        'steps': config['steps'],
        'batch size': config['batch_size'],
        'sequence length': config['seq_len'],
        **({'packing': 'several examples in a row'} if config.get('packing') else {}),
        'learning rate': config['learning_rate'],
        'optimizer': f'{optimizer["name"]}, weight decay {optimizer["weight_decay"]}',
        **({'weights': f'moving average, decay {config["ema_decay"]}'} if config.get('ema_decay') else {}),
        'pairs': config['pairs']['mode'],
        'masks': f'{rate:.0%}{final} of positions{evaluated}, unit {masking["unit"]}',
        'seed': config['seed'],
        'store': config['fingerprints']['store'],
        'tokenizer': config['fingerprints']['tokenizer'],
    }
    facts |= distillation_facts(config)
    for number, phase in enumerate(config['phases']):
        phase_values = {key: value for key, value in phase.items() if key not in UNSET or value != UNSET[key]}
        facts[f'phase {number}'] = ', '.join(f'{key} {value}' for key, value in phase_values.items())
    card: dict[str, Any] = {'title': 'BERT trained with bertjax', 'name': config.get('push_to', ''), **facts}
    if rows:
        card['Held-out text'] = {name: rows[-1][name] for name in PRINTED_FIGURES if rows[-1].get(name) is not None}
    return card


def _filled_masks(
    params: Any, model_config: BertConfig, tokenizer: Tokenizer, heldout: Examples
) -> Iterator[dict[str, Any]]:
    """Yields the most certain [MASK] prediction in each of the first held-out examples; skips any without a [MASK]."""
    batch = heldout.batch(np.arange(_NUM_FILLED))
    forward = jax.jit(make_forward(BertForPreTraining(model_config), PRETRAINING))
    # The parameters are copied to the host, because TPU kernels outside of a mesh cannot compute with sharded arrays.
    logits = np.asarray(forward(jax.device_get(params), batch)['mlm_logits'])
    for row in range(_NUM_FILLED):
        ids, positions = batch['input_ids'][row], batch['masked_positions'][row]
        masked = [p for p in range(len(positions)) if ids[positions[p]] == tokenizer.mask_id]
        if not masked:
            continue
        probabilities = softmax(logits[row, masked])[:, : tokenizer.vocab_size]  # [masks, V]
        most_certain = int(probabilities.max(-1).argmax())
        p, best = masked[most_certain], int(probabilities[most_certain].argmax())
        position = positions[p]
        left, right = ids[max(position - _CONTEXT, 1) : position], ids[position + 1 : position + 1 + _CONTEXT]
        keep = lambda part: [i for i in part if i not in (tokenizer.pad_id, tokenizer.cls_id)]  # noqa: E731
        yield {
            'before': f'… {tokenizer.decode(keep(left))}',
            'after': f'{tokenizer.decode(keep(right))} …',
            'filled': tokenizer.piece_text(tokenizer.pieces[best]),
            'probability': round(float(probabilities[most_certain, best]), 4),
            'was': tokenizer.piece_text(tokenizer.pieces[batch['masked_ids'][row, p]]),
        }


def _print_heldout(console: Console, rows: list[dict[str, Any]], baselines: ChanceBaselines) -> None:
    """Prints a table of the first and the last held-out row, and then the chance baselines."""
    first, last = rows[0], rows[-1]
    table = make_table('held-out text', '', f'step {first["step"]}', f'step {last["step"]}', **BOXED)
    for name in PRINTED_FIGURES:
        if last.get(name) is not None:
            table.add_row(name.replace('_', ' '), format_value(first.get(name)), format_value(last[name]))
    console.print(table)
    comparisons = []
    if baselines.unigram is not None and last.get('mlm_loss') is not None:
        comparisons.append(f'an MLM loss of {baselines.unigram:.3f} from the piece frequencies')
    if last['phase'] in baselines.majority:
        share, pair = baselines.majority[last['phase']], baselines.pair.upper()
        comparisons.append(f'an {pair} accuracy of {share:.3f} by always giving the same answer')
    if comparisons:
        console.print(f'a model without context reaches {", and ".join(comparisons)}', markup=False)


def _print_texts(console: Console, texts: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
    """Prints a table of the first and the last MLM loss and accuracy on each text of config.heldout_texts.

    A text that was added to a resumed run has no value at the first step.
    """
    steps = min(first['step'] for first, _ in texts.values()), max(last['step'] for _, last in texts.values())
    columns = [f'{figure}\nstep {step}' for figure in ('MLM loss', 'accuracy') for step in dict.fromkeys(steps)]
    table = make_table('other held-out texts', '', *columns, **BOXED)
    for name, rows in texts.items():
        by_step = {row['step']: row for row in rows}
        known = [by_step.get(step, {}) for step in dict.fromkeys(steps)]
        table.add_row(name, *(format_value(row.get(key)) for key in ('mlm_loss', 'mlm_accuracy') for row in known))
    console.print(table)


def _next_commands(folder: pathlib.Path, config: Mapping[str, Any], recipe: str) -> list[tuple[str, ...]]:
    """Returns the commands that the summary proposes to run next."""
    config_flag, path = f'--config={shlex.quote(recipe)}', pathlib.Path(recipe.partition(':')[0])
    files = (path.with_name('classify.py'), pathlib.Path('configs/classify.py')) if path.suffix else ()
    classify = next((file for file in files if file.exists()), 'classify')
    name = display_path(folder)
    workdir = shlex.quote(name)
    same_run = f'{config_flag} --workdir={workdir}'
    commands = [
        ('a page about this workdir', f'{same_run} --config.run=report', 'report'),
        ('a plot of the learning curve', f'{same_run} --config.run=plot', 'plot'),
    ]
    if config['export'] and exported_model(folder):
        flags = f'--workdir={shlex.quote(f"{name}_labels")} --config.init={workdir} --config.data=TABLE.csv'
        title = 'a classifier from your own table with the columns text and label'
        commands.append((title, f'--config={shlex.quote(str(classify))} {flags}'))
    if config['corpus'] == 'pydoc:' and 'distill' not in config:
        flags = "--workdir=out/mine --config.corpus='texts/*.txt'"
        commands.append(('the same on your own text', f'{config_flag} {flags}'))
    return commands
