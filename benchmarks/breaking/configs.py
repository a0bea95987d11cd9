"""Senseless values for the keys of some recipes."""

import random
import shutil

from golden_runs import FIRST

from bertjax.config.files import load_recipe
from bertjax.config.plain import flatten
from breaking.world import Outcome, World

VALUES = (
    '0',
    '-1',
    '-0.5',
    '1e-300',
    '1e300',
    '9' * 20,
    '9' * 400,
    'nan',
    'inf',
    '-inf',
    '',
    ' ',
    'None',
    'true',
    'abc',
)
VALUES += ('abc', '()', "('a',)", '(1,2)', '{}', '10%', '-10%', '1e9%', 'nanepochs', '\x1b[31m', '../..', 'ä' * 300)
# Keys that select the action or its input. Other kinds of attempts change them.
LEFT_OUT = {'run', 'corpus', 'data', 'task.kind'}
RUNS = (FIRST, 'rte', 'classification', 'tagging', 'squad', 'choice')


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Trains for two steps with a changed key. The run must finish, refuse in one line, or stop at non-finite steps."""
    rng = random.Random(f'{seed} configs {number}')
    kind = rng.choice(RUNS)
    (recipe,) = (word.removeprefix('--config=') for word in world.arguments(kind, '') if word.startswith('--config='))
    keys = sorted(flatten(load_recipe(recipe)).keys() - LEFT_OUT)
    key, value = rng.choice(keys), rng.choice(VALUES)
    if kind != FIRST:
        world.make_encoder()
    workdir = world.make_folder(f'config-{number}') / 'run'
    short = ('--config.steps=2', '--config.export=false', '--config.eval_every=0', '--config.log_every=1')
    what = f'{kind}: --config.{key}={value!r:.40}'
    ended = world.call(*world.arguments(kind, workdir), *short, f'--config.{key}={value}')
    if ended.status == 3 and not ended.fault:  # a stop because of non-finite steps is correct
        pass
    elif ended.wrong:
        return Outcome(False, f'{what}: {ended.wrong}')
    elif ended.status == 2 and (workdir / 'checkpoints').exists():
        return Outcome(False, f'{what}: refused after computing: {ended.err.strip()[-200:]}')
    shutil.rmtree(workdir.parent)
    return Outcome(True, what)
