"""Fine-tunes with transformers' Trainer and PyTorch, from the same command line as bertjax.

    python benchmarks/trainer.py --config=configs/glue.py:rte --workdir=out/rte_peer --config.init=DIR --config.data=DIR

By default, the rows of a batch have similar lengths; see --padding. The script writes the metrics of bertjax's tasks to
WORKDIR/results.json. Needs the extra `bench`.
"""

import json
import os
import pathlib

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # the data layer of bertjax imports jax

import transformers
from absl import app, flags
from ml_collections import config_flags
from peers.trainer import Peer

from bertjax.files.atomic import write_atomic
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_data import data_from_source

_CONFIG = config_flags.DEFINE_config_file('config', None, 'See --config of bertjax.main.', lock_config=True)
_PADDING = flags.DEFINE_enum(
    'padding', 'group_by_length', ('group_by_length', 'longest', 'max_length'), 'See benchmarks/peers/trainer.py.'
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'See --workdir of bertjax.main.', required=True)


def main(argv: list[str]) -> None:
    del argv
    transformers.logging.set_verbosity_error()
    config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    data = data_from_source(finetuning_settings(config), folder)
    peer = Peer(config, data, data.split('train', training=True), padding=_PADDING.value)
    peer.trainer.train()
    results = {'task': data.task.name, 'score': data.task.score, 'seed': config.seed, **peer.results()}
    text = json.dumps(results, indent=2) + '\n'
    write_atomic(folder / 'results.json', text)
    print(text, end='')


if __name__ == '__main__':
    app.run(main)
