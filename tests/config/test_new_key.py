"""Tests that one line declares a key for recipes, --help, ranges, settings, resuming and docs/keys.md."""

import pathlib
import shutil
import subprocess
import sys

LINE = "    patches: int = key(3, integer(1, 9), 'how many patches a quilt has', change=TRAINING)\n"
BEFORE = '    eval_examples: int = key('

PROGRAM = """
import contextlib, dataclasses, io
from bertjax import usage
from bertjax.config.check import check_ranges
from bertjax.config.plain import to_plain
from bertjax.config.recipes import pretraining_config
from bertjax.config.resume import check_resume
from bertjax.config.tables import page
from bertjax.errors import UserError
from bertjax.pretrain.settings import pretraining_settings
from bertjax.commands import show

def refusal(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except UserError as error:
        return str(error)

(line,) = [line for line in usage.recipe_help('pretrain_tiny').splitlines() if line.startswith('  patches ')]
assert line.split(maxsplit=2)[1:] == ['3', 'how many patches a quilt has; a whole number from 1 to 9'], line
config = pretraining_config('tiny')
config.patches = 5
check_ranges(config)
settings = pretraining_settings(config)
assert settings.patches == 5 and to_plain(settings)['patches'] == 5
try:
    settings.patches = 6
except dataclasses.FrozenInstanceError:
    pass
else:
    raise AssertionError('not frozen')
before = to_plain(config)
config.patches = 6
assert check_resume(before, to_plain(config), 'out') == ['patches: 5 -> 6']
message = refusal(check_resume, before, to_plain(config), 'out', finished=True)
assert message.startswith('config.patches: found 6, expected 5 as in the checkpoint in out'), message
out = io.StringIO()
with contextlib.redirect_stdout(out):
    show.run(config, None, 'pretrain_tiny')
assert 'patches' in out.getvalue().partition('differs from the recipe')[2]
config.patches = 10
assert refusal(check_ranges, config).startswith('config.patches: found 10, expected a whole number from 1 to 9')
assert '| `patches` | `3` | how many patches a quilt has | int: 1–9 | unfinished |' in page()
"""


def test_a_new_key_is_one_line(repository: pathlib.Path, tmp_path: pathlib.Path):
    for folder in ('bertjax', 'configs'):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns('__pycache__'))
    path = tmp_path / 'bertjax' / 'config' / 'pretraining.py'
    text = path.read_text(encoding='utf-8')
    assert text.count(BEFORE) == 1
    path.write_text(text.replace(BEFORE, LINE + BEFORE), encoding='utf-8')
    done = subprocess.run([sys.executable, '-c', PROGRAM], cwd=tmp_path, env={'PATH': '', 'PYTHONPATH': str(tmp_path),
        'JAX_PLATFORMS': 'cpu'}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
