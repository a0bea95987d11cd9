"""What a pre-training begins with where it does not begin at nothing: the architecture and the weights of config.init,
with rows for the words of config.vocab.add."""

import dataclasses
import pathlib
from collections.abc import Collection
from typing import Any

from bertjax.convert.load import load_pretraining_model, read_config
from bertjax.convert.vocabulary import add_piece_rows
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.text.added_words import find_previous_ids
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.lock import has_checkpoints
from bertjax.workdir.resolve_path import huggingface_directory

# Of the architecture, what a run decides for itself: by its tokenizer, its pairs, its precision.
_OWN = ('vocab_size', 'nsp', 'param_dtype')


def with_architecture(
    settings: PretrainingSettings, folder: pathlib.Path, given: Collection[str] = ()
) -> PretrainingSettings:
    """The settings with the architecture of config.init, where config.architecture_from says so.

    A run that has begun has it in its config.json, and needs config.init no more. Its tree of parameters stays as it
    is, too, whatever that of the recipe has become.

    Args:
      settings: of a pre-training.
      folder: its workdir.
      given: keys that the command line sets: these must be the checkpoint's, the usual values of others need not.

    Raises:
      UserError: no checkpoint in config.init, or a value of config.model that is not its.
    """
    layout = {name: value for name, value in fields_of(FieldKind.LAYOUT).items() if f'model.{name}' not in given}
    settings = _with_fields(settings, _recorded(folder, layout) or {})
    if settings.architecture_from != 'init':
        return settings
    usual = {name: value for name, value in fields_of(FieldKind.ARCHITECTURE).items() if name not in _OWN}
    theirs, source = _recorded(folder, usual), str(folder / 'config.json')
    if theirs is None:
        source = huggingface_directory(settings.init)
        config = read_config(source)
        theirs = {name: getattr(config, name) for name in usual}
    for name, value in theirs.items():
        ours = getattr(settings.model, name)
        if ours != value and (ours != usual[name] or f'model.{name}' in given):
            fix = 'leave it out'
            raise UserError(f'config.model.{name}', str(ours), f'{value}, as in {source}', fix)
    return _with_fields(settings, theirs)


def _with_fields(settings: PretrainingSettings, theirs: dict[str, Any]) -> PretrainingSettings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, **theirs))


def _recorded(folder: pathlib.Path, names: dict[str, Any]) -> dict[str, Any] | None:
    if not has_checkpoints(folder):
        return None
    return read_json_or_none(folder / 'config.json', lambda facts: {name: facts['model'][name] for name in names})


def initial_params(
    settings: PretrainingSettings, model: BertConfig, tokenizer: Tokenizer
) -> tuple[dict[str, Any], str]:
    """The weights of config.init for `model`, host arrays in its tree, and what is to be said of them.

    Raises:
      UserError: a checkpoint of another size.
    """
    directory = huggingface_directory(settings.init)
    shared = {'scan_layers': model.scan_layers, 'nsp': model.nsp}
    imported = load_pretraining_model(directory, seed=settings.run_seeds.init, **shared)
    before = load_tokenizer(settings.tokenizer or directory) if settings.vocab.add else tokenizer
    params, said = imported.params, [imported.describe(directory)]
    for name in ('vocab_size', 'num_layers', 'width', 'num_heads', 'mlp_dim', 'max_positions', 'num_segments'):
        theirs, ours = getattr(imported.config, name), getattr(model, name)
        ours = before.vocab_size if name == 'vocab_size' else ours
        if theirs != ours:
            fix = f'set --config.model.{name}={theirs}' if name != 'vocab_size' else 'leave config.tokenizer empty'
            raise UserError(f'config.model.{name}', str(ours), f'{theirs}, as in {directory}', fix)
    for name in ('activation', 'pooler_activation', 'layer_norm_eps', 'causal', 'pre_norm'):
        theirs, ours = getattr(imported.config, name), getattr(model, name)
        if theirs != ours and (model.nsp or name != 'pooler_activation'):
            said.append(
                f'config.model.{name} is {ours}, where it was {theirs}: --config.model.{name}={theirs} keeps it'
            )
    if before is not tokenizer:
        new = find_previous_ids(before, tokenizer)
        params = add_piece_rows(params, model, new)
        said.append(f'{len(new):,} words begin as the mean of their pieces')
    return params, '\n'.join(said)
