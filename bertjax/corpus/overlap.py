"""Checks that a run does not write into its corpus, because the next start would read the written files as text."""

import os
import pathlib
from collections.abc import Sequence

from etils import epath

from bertjax.corpus.sources import split_components
from bertjax.errors import UserError
from bertjax.files.paths import is_hidden, is_pattern, is_remote, would_match

# Examples of the files that a build, a run and later commands write: at least one at each depth of folders.
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


def check_outside(
    spec: str | Sequence[str],
    folder: epath.PathLike,
    written: Sequence[str] = STORE_FILES,
    where: str = 'config.corpus',
) -> None:
    """Checks that the text `spec` does not include the files `written`, which a run writes to `folder`.

    Raises:
      UserError: A component is a directory that contains the folder, or a glob that matches one of the files.
    """
    output = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    for part in split_components(spec):
        if not is_remote(part) and _would_match_output(os.path.expanduser(part), output, written):
            raise UserError(
                where, f'{part!r}, which contains {os.fspath(folder)!r}', 'text outside the output folders',
                'give another --workdir, or move the text to a separate folder',
            )  # fmt: skip


def _would_match_output(part: str, output: pathlib.Path, written: Sequence[str]) -> bool:
    if os.path.isdir(part):
        top = pathlib.Path(os.path.realpath(part))
        inside = output.relative_to(top).parts if output.is_relative_to(top) else ('.',)
        return not is_hidden(inside)
    return is_pattern(part) and not os.path.exists(part) and any(would_match(part, output / name) for name in written)
