"""The commands in docs/index.md work."""

import json
import pathlib
import re
import shlex

import pytest
from running import Program, rows

# Turns off everything but training and the final evaluation.
QUICK = (
    '--config.max_padded_lengths=1',
    '--config.eval_every=0',
    '--config.checkpoint_every=0',
    '--config.export=False',
)


@pytest.fixture(scope='module')
def mails(program: Program, trained: pathlib.Path, repository: pathlib.Path, tmp_path_factory):
    """mails(workdir, *changes) -> the result of the command of the page with its table and another encoder."""
    page = (repository / 'docs' / 'index.md').read_text(encoding='utf-8')
    table = tmp_path_factory.mktemp('mails') / 'mails.csv'
    table.write_text(re.search(r'```\n(text,label\n.*?)```', page, re.DOTALL)[1], encoding='utf-8')
    command = re.search(r'^python -m bertjax\.main (--config=configs/classify\.py .*mails\.csv.*)$', page, re.MULTILINE)
    recipe, *flags = shlex.split(command[1])

    def run(workdir: pathlib.Path, *changes: str):
        paths = {'--workdir': workdir, '--config.init': trained, '--config.data': table}
        arguments = [f'{name}={paths.pop(name, value)}' for name, value in (flag.split('=', 1) for flag in flags)]
        assert not paths
        return program.run(*arguments, *QUICK, *changes, recipe=recipe.removeprefix('--config='), small=False)

    return run


@pytest.mark.slow
def test_the_table_of_mails_trains(mails, tmp_path: pathlib.Path):
    result = mails(tmp_path)
    assert '10 records for training, 2 labels' in result.stdout and '10 rows; 2 dev' in result.stdout
    assert '--config.run=predict' in result.stdout[result.stdout.index('what to run next') :]
    results = json.loads((tmp_path / 'results.json').read_text(encoding='utf-8'))
    assert list(results['splits']) == ['dev']
    losses = [row['loss'] for row in rows(tmp_path / 'metrics.jsonl', 'train')]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_run_that_learned_nothing_gets_advice(mails, tmp_path: pathlib.Path):
    """The learning rate is too low to change anything, so the advice is a higher one."""
    lines = mails(tmp_path, '--config.learning_rate=1e-9').stdout.splitlines()
    line = lines[lines.index('the model gives all 2 records of dev nearly the same answer') + 1]
    assert 'hardly changed' in line and 'a higher rate (--config.learning_rate=5e-09) help' in line


def test_a_table_that_is_too_small_is_an_error(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / 'mails.csv').write_text('text,label\n"win 3 prizes now, click here",spam\nsee you at noon,ham\n')
    table = (f'--config.data={tmp_path / "mails.csv"}', f'--config.init={trained}', f'--workdir={tmp_path / "out"}')
    line = program.error(*table, recipe='configs/classify.py', small=False)
    assert (
        'config.task.dev_fraction: found 0.1, which leaves no record' in line
        and 'name a dev file in config.task.dev' in line
    )
