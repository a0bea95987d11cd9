"""run=triviaqa: TriviaQA's questions and documents in the form of SQuAD 1.1, to train on before SQuAD or with it."""

import json
import pathlib

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import finetuning_settings
from bertjax.experiment.workdir import working_in
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import data_directory
from bertjax.tasks.squad.trivia import WORDS, Counts, squad_of_trivia

_SPLITS = {'train': 'qa/wikipedia-train.json', 'dev': 'qa/wikipedia-dev.json'}


def run(config: ConfigDict, workdir: str) -> None:
    """Converts config.data, the folder of triviaqa-rc, to WORKDIR/train-v1.1.json and dev-v1.1.json.

    config.task.train_file and dev_file name other files of questions in it, such as qa/web-train.json; a split that has
    neither is left out.

    Raises:
      UserError: another kind of task, another layout, no file of questions.
    """
    settings, folder = finetuning_settings(config), pathlib.Path(workdir)
    if settings.task['kind'] != 'squad' or settings.task['version'] != '1.1':
        expected = 'the recipe of SQuAD 1.1, whose form it gives TriviaQA'
        raise UserError('config.run', 'triviaqa with another recipe', expected, 'give --config=squad:v1')
    data = data_directory(settings.data, 'the folder of triviaqa-rc, with qa/ and evidence/')
    named = {split: settings.task[f'{split}_file'] for split in _SPLITS}
    files = {split: data / (named[split] or usual) for split, usual in _SPLITS.items()}
    for split, path in list(files.items()):
        if not path.is_file() and not named[split]:
            del files[split]
        elif not path.is_file():
            raise UserError(f'config.task.{split}_file', f'no file {path}', 'questions of TriviaQA', 'check the name')
    if not files:
        found, mend = f'{data} without {" or ".join(_SPLITS.values())}', 'name others in config.task.train_file'
        raise UserError('config.data', found, 'questions of TriviaQA', mend)
    with working_in(folder):
        for split, path in files.items():
            counts = Counts()
            print(f'{split}: {path} …', flush=True)
            entries = list(squad_of_trivia(data, path, counts))
            if not entries:
                found = f'no answer in the first {WORDS} words of {counts.documents:,} documents'
                raise UserError(str(path), found, 'one at least', 'check that evidence/ belongs to it')
            text = json.dumps({'version': '1.1', 'data': entries}, ensure_ascii=False)
            target = folder / f'{split}-v1.1.json'
            write_atomic(target, text + '\n')
            print(
                f'{target}: {counts.kept:,} of {counts.documents:,} documents have an answer in their first {WORDS} '
                f'words; {counts.answered:,} of {counts.questions:,} questions have such a document'
            )
    print(f'train on it with --config.data={folder}, then on SQuAD with --config.init=WORKDIR of that run')
