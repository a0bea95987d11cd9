"""run=triviaqa: convert TriviaQA to the format of SQuAD 1.1, for training before SQuAD or together with SQuAD."""

import collections
import json
import pathlib
import shlex

from etils import epath
from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile
from bertjax.finetune.settings import finetuning_settings
from bertjax.progress import show_progress
from bertjax.remote.paths import data_directory
from bertjax.tasks.squad.trivia import WORDS, convert_to_squad, read_questions
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='task', devices=False)

_SPLITS = {'train': 'qa/wikipedia-train.json', 'dev': 'qa/wikipedia-dev.json'}


def run(config: ConfigDict, workdir: str) -> None:
    """Converts the questions in config.data, the folder of triviaqa-rc, to WORKDIR/train-v1.1.json and dev-v1.1.json.

    config.task.train_file and dev_file may name other question files. A split is left out if its key is empty and its
    default file is missing.

    Raises:
      UserError: The task is not SQuAD 1.1, a file is not in TriviaQA's format, no file of questions exists, or the
        documents of a file have no answer in their first WORDS words.
    """
    settings, folder = finetuning_settings(config), pathlib.Path(workdir)
    if settings.task['kind'] != 'squad' or settings.task['version'] != '1.1':
        expected = 'the recipe of SQuAD 1.1, because triviaqa writes the format of SQuAD 1.1'
        raise UserError('config.run', 'triviaqa with the recipe of another task', expected, 'give --config=squad:v1')
    data = data_directory(settings.data, 'the folder of triviaqa-rc, with qa/ and evidence/')
    file_keys = {split: settings.task[f'{split}_file'] for split in _SPLITS}
    files = {split: data / (file_keys[split] or default) for split, default in _SPLITS.items()}
    for split, path in list(files.items()):
        if not path.is_file() and not file_keys[split]:
            del files[split]
        elif not path.is_file():
            raise UserError(f'config.task.{split}_file', f'no file {path}', 'questions of TriviaQA', 'check the name')
    if not files:
        found, fix = f'{data} without {" or ".join(_SPLITS.values())}', 'name other files in config.task.train_file'
        raise UserError('config.data', found, 'questions of TriviaQA', fix)
    with lock_workdir(folder):
        for split, path in files.items():
            counts: collections.Counter[str] = collections.Counter()
            print(f'{split}: {path} …', flush=True)
            target = folder / f'{split}-v1.1.json'
            with AtomicFile(target) as file:
                _write(file, data, path, counts)
            print(
                f'{target}: {counts["paragraphs"]:,} of {counts["documents"]:,} documents have an answer in their '
                f'first {WORDS} words; {counts["answered"]:,} of {counts["questions"]:,} questions have such a document'
            )
    if 'train' in files:
        data = f'--config.data={shlex.quote(str(folder))}'
        print(f'train on it with {data}, then on SQuAD with --config.init=WORKDIR of that run')


def _write(file: AtomicFile, data: epath.Path, path: epath.Path, counts: collections.Counter[str]) -> None:
    questions = read_questions(path)
    separator = '{"version": "1.1", "data": ['
    with show_progress('questions', len(questions), lines=True) as advance:
        counted_questions = (advance(1) or question for question in questions)
        for entry in convert_to_squad(data, path, counted_questions, counts):
            file.write((separator + json.dumps(entry, ensure_ascii=False)).encode())
            separator = ', '
    if not counts['paragraphs']:
        found = f'no answer in the first {WORDS} words of {counts["documents"]:,} documents'
        raise UserError(str(path), found, 'at least one answer', 'check that evidence/ belongs to these questions')
    file.write(b']}\n')
