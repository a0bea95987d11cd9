"""Describes a model for the user: its sizes, its heads and its devices."""

import jax

from bertjax.convert.trees import flat_paths
from bertjax.errors import printable
from bertjax.inference.tasks import describe
from bertjax.loading.load_model import LoadedModel

_MAX_LABELS, _MAX_UNUSED = 12, 3  # the maximum numbers of printed names


def describe_model(model: LoadedModel) -> str:
    """Returns the description as a table of a few lines."""
    config, tokenizer, devices = model.config, model.tokenizer, model.mesh.devices.flat
    count = sum(x.size for x in jax.tree.leaves(model.params))
    cased = 'uncased' if tokenizer.lowercase else 'cased'
    rows = {
        'Bert': model.where,
        'encoder': f'{config.num_layers} layers, width {config.width}, {config.num_heads} heads, '
        f'{config.max_positions} positions',
        'parameters': f'{count:,} in {len(flat_paths(model.params)):,} arrays, {config.param_dtype}',
        'tokenizer': f'{tokenizer.family}, {tokenizer.vocab_size:,} pieces, {cased}',
        'heads': ', '.join(_heads(model)) or 'none',
    }
    if model.task is not None and model.task.labels:
        more = ' …' if len(model.task.labels) > _MAX_LABELS else ''
        rows['labels'] = ', '.join(model.task.labels[:_MAX_LABELS]) + more
    if model.missing:
        rows['initialized'] = ', '.join(sorted({path.split('/')[0] for path in model.missing})) + ' (untrained)'
    if model.unused:
        more = f' and {len(model.unused) - _MAX_UNUSED:,} more' if len(model.unused) > _MAX_UNUSED else ''
        rows['not used'] = ', '.join(model.unused[:_MAX_UNUSED]) + more
    if model.sentence_modules:
        rows['sentences'] = model.sentence_modules.describe()
    rows['computes in'] = f'{config.dtype} on {len(devices)} x {devices[0].device_kind}'
    return '\n'.join(f'{name:<11}  {printable(text)}' for name, text in rows.items())


def _heads(model: LoadedModel) -> list[str]:
    if model.task is not None:
        return [describe(model.task)]
    untrained = {path.split('/')[0] for path in model.missing}
    mlm = 'masked words' + (', each predicted at the position before it' if model.config.shifted_predictions else '')
    titles = {'mlm': mlm, 'pooler': 'pooler', 'nsp': 'sentence pairs'}
    return [name for part, name in titles.items() if part in model.params and part not in untrained]
