"""Whether what a run writes lies apart from its corpus, which would find it as text at the next start."""

import os
import pathlib
from collections.abc import Sequence

from etils import epath

from bertjax.corpus.sources import components
from bertjax.errors import UserError
from bertjax.files.paths import is_pattern, is_remote, would_match

# A name of every kind and depth that is written into a store, and by a pre-training and the verbs after it.
_TOKENIZER = ['tokenizer/vocab.txt', 'tokenizer/tokenizer.json', 'tokenizer/tokenizer.model']
STORE_FILES = [
    *('manifest.json', 'inputs.json', 'train-00000.tokens', 'train.sentences', 'train.documents'),
    *(f'partial/{name}' for name in ('plan.json', '00000.lines', *_TOKENIZER)),
]
WORKDIR_FILES = [
    *('config.json', 'metrics.jsonl', 'learning_curve.png', 'tensorboard/events.out.tfevents.1', *_TOKENIZER),
    *('report.html', 'tracker.json', 'wandb/offline-run-1/run-1.wandb', 'counts/plan.json', 'counts/counts-0-00000'),
    *(f'{store}/{name}' for store in ('store', 'store/0', 'heldout/name') for name in STORE_FILES),
    *(f'checkpoints/1/{name}' for name in ('seal.json', 'commit_success.txt', 'state/d/1', 'state/process_0/d/1')),
    *(f'export/hf/{name}' for name in ('README.md', 'config.json', 'vocab.txt', 'model.safetensors')),
]


def check_outside(spec: str | Sequence[str], folder: epath.PathLike, written: Sequence[str] = STORE_FILES) -> None:
    """Refuses a folder for results in which the corpus would find them as text at the next start.

    Args:
      spec: of the corpus.
      folder: the store, or the workdir of a run.
      written: the files that will be there, whether they are already or not.

    Raises:
      UserError: a component is a directory that holds the folder, or a glob that finds one of its files.
    """
    own = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    for part in components(spec):
        if not is_remote(part) and _would_find(os.path.expanduser(part), own, written):
            raise UserError(
                'config.corpus', f'{part!r}, which holds {os.fspath(folder)!r}', 'text apart from what the run writes',
                'give another --workdir, or move the text to a folder of its own',
            )  # fmt: skip


def _would_find(part: str, own: pathlib.Path, written: Sequence[str]) -> bool:
    if os.path.isdir(part):
        top = pathlib.Path(os.path.realpath(part))
        inside = own.relative_to(top).parts if own.is_relative_to(top) else ('.',)
        return not any(name.startswith(('.', '_')) for name in inside)
    return is_pattern(part) and not os.path.exists(part) and any(would_match(part, own / name) for name in written)
