"""Loads the model of a pre-training run from its checkpoints."""

import contextlib
import dataclasses
import pathlib
from typing import Any

from jax.sharding import Mesh

from bertjax.checkpoint.checkpoints import Checkpoints, SavedCheckpoint
from bertjax.data.pairs import PairOptions
from bertjax.errors import UserError
from bertjax.model.config import BertConfig, FieldKind, fields_of
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.text.tokenizer import Tokenizer
from bertjax.workdir.tokenizer import load_workdir_tokenizer

_FIX = 'give the recipe of this workdir'


@dataclasses.dataclass(frozen=True)
class SavedPretraining:
    """A checkpoint of a pre-training run, with its parameters on the mesh."""

    config: BertConfig
    mesh: Mesh
    tokenizer: Tokenizer
    params: Any
    checkpoint: SavedCheckpoint


def load_pretraining(settings: PretrainingSettings, folder: pathlib.Path) -> SavedPretraining:
    """Loads the checkpoint of config.step, or the newest checkpoint if config.step is 0.

    Raises:
      UserError: There is no checkpoint, or its model differs from the model in `settings`.
    """
    tokenizer = load_workdir_tokenizer(folder)
    with contextlib.closing(Checkpoints(folder / 'checkpoints', read_only=True)) as checkpoints:
        checkpoint = checkpoints.select(settings.step)
        if checkpoint is None:
            where, found = str(folder / 'checkpoints'), 'no finished checkpoint'
            raise UserError(where, found, 'a finished checkpoint', 'train first')
        if task := checkpoint.config.get('task'):
            raise UserError('--config', 'a recipe without a task', f'a task of the kind {task["kind"]}', _FIX)
        model_config = settings.model_config(max(tokenizer.vocab_size, checkpoint.config['model']['vocab_size']))
        for name in fields_of(FieldKind.ARCHITECTURE, FieldKind.LAYOUT):
            configured = getattr(model_config, name)
            recorded = checkpoint.config['model'].get(name, configured)
            if configured != recorded:
                raise UserError(f'config.model.{name}', str(configured), f'{recorded}, as in the checkpoint', _FIX)
        mode = checkpoint.config['pairs']['mode']
        # The two modes may differ, unless only one of them has a pair head.
        if PairOptions(mode=mode).paired != settings.pair_options.paired:
            raise UserError('config.pairs.mode', settings.pair_options.mode, f'{mode}, as in the checkpoint', _FIX)
        settings = dataclasses.replace(settings, zero1='off')  # nothing is trained
        setup = build_pretraining_setup(settings, model_config, make_mesh(settings.mesh_axes))
        with mesh_context(setup.mesh):
            params = checkpoints.restore_params(checkpoint, setup.state.params)
    return SavedPretraining(model_config, setup.mesh, tokenizer, params, checkpoint)
