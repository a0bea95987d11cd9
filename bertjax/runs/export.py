"""run=export: writes the newest checkpoint of a workdir to WORKDIR/export/hf and WORKDIR/export/orbax."""

import json
import pathlib
from collections.abc import Collection

import jax
from ml_collections import ConfigDict

from bertjax.checkpoint import Checkpoints
from bertjax.convert.huggingface.config import check_exportable, check_head_exportable
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.orbax import export_orbax
from bertjax.errors import UserError
from bertjax.files import exclusive
from bertjax.parallel.mesh import make_mesh
from bertjax.runs import _settings as settings
from bertjax.runs._results import RESULTS, export_task
from bertjax.runs._summary import heldout_rows, model_card_facts
from bertjax.runs._training import build_training
from bertjax.runs._tuned import config_of_run, load_tuned
from bertjax.text.tokenizer import load_tokenizer


def run(config: ConfigDict, workdir: str, given: Collection[str] = ()) -> None:
    """Exports. Model and tokenizer are those of the workdir; the recipe must be the one that it was trained with.

    Args:
      config: the recipe's.
      workdir: of a training.
      given: keys that the command line sets, see `config_of_run`.

    Raises:
      UserError: no checkpoint, a recipe of another model, or a model that the format cannot hold.
    """
    folder = pathlib.Path(workdir)
    if not (folder / 'checkpoints').is_dir():
        raise UserError('--workdir', f'no checkpoints in {workdir}', 'the workdir of a training run', 'train first')
    with exclusive(folder, 'trains in this workdir'):
        if 'task' in config:
            _export_tuned(config_of_run(config, folder, given), folder)
        else:
            _export(config, folder)


def _export_tuned(config: ConfigDict, folder: pathlib.Path) -> None:
    tuning, params, _ = load_tuned(config, folder, lambda data: {'train': data.split('train', training=True)})
    check_head_exportable(tuning.model)
    path = folder / RESULTS
    results = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {'splits': {}}
    plan = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    export_task(folder, plan, tuning, params, results)
    print(f'exported to {folder / "export" / "hf"} as {tuning.data.task.huggingface()[0]}')


def _export(config: ConfigDict, folder: pathlib.Path) -> None:
    tokenizer = load_tokenizer(str(folder / 'tokenizer'))
    model = settings.model_config(config, tokenizer.vocab_size)
    check_exportable(model)
    checkpoints = Checkpoints(folder / 'checkpoints', keep=config.checkpoint_keep)
    saved = checkpoints.latest()
    if saved is None:
        raise UserError(str(folder / 'checkpoints'), 'no finished checkpoint', 'at least one', 'train first')
    for name, value in saved.config['model'].items():
        ours = getattr(model, name)
        if ours != value and name not in ('dropout', 'attention_dropout', 'remat', 'dtype'):
            raise UserError(
                f'config.model.{name}', str(ours), f'{value}, as in the checkpoint', 'give the recipe of this workdir'
            )
    training = build_training(config, model, make_mesh(config.mesh))
    state = checkpoints.restore(saved.position.step, training.state)
    checkpoints.close()
    rows = [row for row in heldout_rows(folder / 'metrics.jsonl') if row['step'] <= saved.position.step]
    target = folder / 'export' / 'hf'
    card = model_card_facts({**saved.config, 'steps': saved.position.step}, rows)
    export_huggingface(jax.device_get(state.params), model, tokenizer, target, card=card)
    export_orbax(state.params, model, folder / 'export' / 'orbax')
    facts = json.loads((target / 'config.json').read_text(encoding='utf-8'))
    print(f'step {saved.position.step} exported to {target} as {facts["architectures"][0]}')
