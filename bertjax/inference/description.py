"""A description of a model for the user: its sizes, its heads and its devices."""

import io
from collections.abc import Mapping

import jax
from rich.markup import escape
from rich.table import Table

from bertjax.convert.trees import flat_paths
from bertjax.inference.tasks import describe
from bertjax.loading.load_model import LoadedModel
from bertjax.terminal import Console

_MAX_LABELS, _MAX_UNUSED = 12, 3  # the maximum numbers of printed names


def describe_model(model: LoadedModel) -> str:
    """Returns the description as a table of a few lines."""
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=False, force_jupyter=False).print(_table(model))
    return out.getvalue().rstrip()


def _table(model: LoadedModel) -> Table:
    config, tokenizer, devices = model.config, model.tokenizer, model.mesh.devices.flat
    table = Table(show_header=False, box=None)
    table.add_row('Bert', escape(model.where))
    count = sum(x.size for x in jax.tree.leaves(model.params))
    shape = f'{config.num_layers} layers, width {config.width}, {config.num_heads} heads'
    table.add_row('encoder', f'{shape}, {config.max_positions} positions')
    table.add_row('parameters', f'{count:,} in {len(flat_paths(model.params)):,} arrays, {config.param_dtype}')
    cased = 'uncased' if tokenizer.lowercase else 'cased'
    table.add_row('tokenizer', f'{tokenizer.family}, {tokenizer.vocab_size:,} pieces, {cased}')
    table.add_row('heads', ', '.join(_heads(model)) or 'none')
    if model.task is not None and model.task.labels:
        labels = escape(', '.join(model.task.labels[:_MAX_LABELS]))
        table.add_row('labels', labels + (' …' if len(model.task.labels) > _MAX_LABELS else ''))
    if model.missing:
        table.add_row('initialized', ', '.join(sorted({path.split('/')[0] for path in model.missing})) + ' (untrained)')
    if model.unused:
        more = f' and {len(model.unused) - _MAX_UNUSED:,} more' if len(model.unused) > _MAX_UNUSED else ''
        table.add_row('not used', escape(', '.join(model.unused[:_MAX_UNUSED])) + more)
    if model.sentence_modules:
        table.add_row('sentences', escape(model.sentence_modules.describe()))
    table.add_row('computes in', f'{config.dtype} on {len(devices)} x {devices[0].device_kind}')
    return table


def _heads(model: LoadedModel) -> list[str]:
    if model.task is not None:
        return [describe(model.task)]
    untrained = {path.split('/')[0] for path in model.missing}
    mlm = 'masked words' + (', each predicted at the position before it' if model.config.shifted_predictions else '')
    titles: Mapping[str, str] = {'mlm': mlm, 'pooler': 'pooler', 'nsp': 'sentence pairs'}
    return [name for part, name in titles.items() if part in model.params and part not in untrained]
