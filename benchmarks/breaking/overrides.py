"""Command lines that are nearly right: keys, values, flags and arguments of recipes after some edits."""

import random
import shutil

from golden_runs import FIRST

from bertjax.config import flatten
from bertjax.recipe_files import load_recipe
from breaking.configs import VALUES
from breaking.mutations import mutated
from breaking.world import Outcome, World

TRAININGS = (FIRST, 'two_phases', 'sop', 'muon', 'rte', 'stsb', 'classification', 'tagging', 'squad', 'choice')
TRAININGS += ('sweep_alone', 'sweep_together')
# Recipes that use a trained model, with what they need.
USES = {
    'extract.py': ('input=data/texts.txt',),
    'fill.py': ('input=data/texts.txt',),
    'attention.py': ('input=data/texts.txt',),
    'convert.py': (),
}
VERBS = ('show', 'doctor', 'vocab', 'corpus', 'baseline', 'evaluate', 'predict', 'export', 'report')
VERBS += ('finetune', 'compile')
# What a recipe may have after its name.
ARGUMENTS = ('', ':', ':adam', ':rte', ':mrpc,grid', ':seq=64', ':seeds=2', ':long=windows', ':v2', ':all')
ARGUMENTS += (':jsonl', ':e', ':ltr', ':features=sum_all,units=8', ':starts,markers=typed', ':glue:rte')


def attempt(world: World, seed: int, number: int) -> Outcome:
    """A run with one to three words of its command line changed: refused in one line, or ready for its first step."""
    rng = random.Random(f'{seed} overrides {number}')
    world.trained('rte')  # and the encoder of the tasks
    workdir = world.place(f'override-{number}') / 'run'
    if rng.random() < 0.85:
        words = world.arguments(rng.choice(TRAININGS), workdir)
    else:
        recipe = rng.choice(list(USES))
        model = f'init={world.trained("rte" if recipe == "convert.py" else FIRST)}'
        words = [f'--config={world.repository}/configs/{recipe}', f'--workdir={workdir}']
        words += [f'--config.{word}' for word in (model, *USES[recipe])]
    keys = flatten(load_recipe(words[0].removeprefix('--config=')))
    changed = [rng.choice(_CHANGES)(words, keys, rng) for _ in range(rng.randint(1, 3))]
    what = f'{words[0].rpartition("/")[2]}: {", ".join(changed)}'
    ended = world.call(*words, training=False)
    if ended.wrong:
        return Outcome(False, f'{what}: {ended.wrong}')
    if ended.status == 2 and (workdir / 'export').exists():
        return Outcome(False, f'{what}: refused, with an export: {ended.err.strip()[-200:]}')
    shutil.rmtree(workdir.parent)
    return Outcome(True, f'{what}: {ended.err.strip().splitlines()[-1] if ended.status else "ready"}')


def _add(words: list[str], word: str) -> str:
    words.append(word)
    return f'{word!r:.90}'


def _value(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """A key, and its usual value after some edits, or that of another key."""
    key, other = rng.choice(list(keys)), rng.choice(list(keys))
    value = rng.choice((mutated(str(keys[key]), rng), mutated(str(keys[key]), rng), keys[other], rng.choice(VALUES)))
    return _add(words, f'--config.{key}={value}')


def _sensible(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """A number that might be meant, of any key; alone or with others it may not fit the rest."""
    key = rng.choice([key for key, value in keys.items() if isinstance(value, int | float | str)])
    values = ('1', '2', '3', '7', '0.5', '16', '1000', '10%', '1epochs', 'true', 'false', 'auto', 'best', 'all')
    return _add(words, f'--config.{key}={rng.choice(values)}')


def _key(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """A key after some edits."""
    key = rng.choice(list(keys))
    made = (mutated(key, rng), mutated(key, rng), f'{key}[0]', f'{key}.name', key.rpartition('.')[2], f'phases[{key}]')
    made += ('phases[9].steps', 'phases[-1].steps', 'phases[0]', 'items', '__class__', f'{key}.', key.upper())
    return _add(words, f'--config.{rng.choice(made)}={keys[key]}')


def _form(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """A word after some edits, wherever in it; or written as other programs have it."""
    at = rng.randrange(len(words))
    name, _, value = words[at].lstrip('-').partition('=')
    made = (mutated(words[at], rng), f'--{name}', f'--no{name}', f'-{name}={value}', f'{name}={value}')
    made += (f'--{name}==={value}',)
    before, words[at] = words[at], rng.choice(made)
    if before.startswith('--workdir') and words[at].startswith('--workdir'):
        words[at] = before  # wherever that would be
    return f'{words[at]!r:.90} for {before!r:.60}'


def _verb(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    return _add(words, f'--config.run={rng.choice((*VERBS, mutated(rng.choice(VERBS), rng)))}')


def _argument(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """Another argument of the recipe."""
    argument = rng.choice(ARGUMENTS)
    words[0] = words[0].rpartition('.py')[0] + '.py' + rng.choice((argument, argument, mutated(argument, rng)))
    return words[0].rpartition('/')[2]


_CHANGES = (_value, _value, _value, _sensible, _sensible, _sensible, _key, _form, _verb, _argument)
