"""Nearly correct command lines, with edited keys, values, flags and arguments of recipes."""

import math
import random
import re
import shutil

from golden_runs import FIRST, SHORT, SMALL, _keys

from bertjax.config.check import config_keys
from bertjax.config.files import load_recipe
from bertjax.config.plain import flatten
from breaking.configs import LEFT_OUT, VALUES
from breaking.mutations import mutate
from breaking.world import Outcome, World, check_trained

# Names of runs in golden_runs.RUNS. The runs in TRAINED are also continued after two steps of training.
TRAININGS = (FIRST, 'two_phases', 'sop', 'muon', 'full_sentences', 'from_init', 'mixture', 'rte', 'stsb', 'tagging')
TRAININGS += ('classification', 'squad', 'choice', 'tagging_features', 'sweep_alone', 'sweep_together')
TRAINED = (FIRST, 'rte', 'stsb', 'classification', 'tagging', 'squad', 'choice')
# {recipe that uses a trained model: its keys}. {first} is a pre-trained model, and {rte} a fine-tuned one.
USES: dict[str, dict[str, object]] = {
    'extract.py': {'init': '{first}', 'input': 'data/texts.txt'},
    'fill.py': {'init': '{first}', 'input': 'data/texts.txt', 'fill__ask': 'score'},
    'attention.py': {'init': '{first}', 'input': 'data/texts.txt'},
    'convert.py': {'init': '{rte}'},
    'adapt.py': SMALL | {'init': '{first}/export/hf'},
    'distilbert.py': SMALL | {'epochs': 0, 'distill__teacher': '{first}', 'model__num_layers': 1},
    'distilbert.py:glue:rte': SHORT | {'init': '', 'distill__teacher': '{rte}', 'data': 'data/RTE'},
    'tinybert.py': SMALL | {'epochs': 0, 'distill__teacher': '{first}'},
}
VERBS = ('show', 'doctor', 'vocab', 'corpus', 'baseline', 'evaluate', 'predict', 'export', 'report')
VERBS += ('finetune', 'compile')
IN_RANGE = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 48, 64, 100, 1000, 2**20, 2**31 - 1, 2**32 - 1, 0.0, 1e-9, 0.1, 0.5)
IN_RANGE += (0.9, 0.999, 1.0, 2.5, 50.0, True, False, '', 'auto', 'all', 'head', 'last_1', 'last_2', '2%', '100%', '3')
IN_RANGE += ('a', '1epochs', '0.1epochs', (), (1,), (0, 1), (0.1,), (0.0, 1e-4), ('all', 'head'), ('a', 'b'), '1:2')
# Prefixes of keys that reject nearly every value immediately. They are changed less often.
HARD = ('mesh.', 'init', 'ensemble', 'benchmark', 'push_', 'track', 'tokenizer', 'input', 'card.', 'distill.teacher')
CONTINUED = ('evaluate', 'predict', 'export', 'report', 'show', 'baseline')
FULL = 25  # every 25th attempt trains, evaluates and exports
# Arguments of recipes.
ARGUMENTS = ('', ':', ':adam', ':rte', ':mrpc,grid', ':seq=64', ':seeds=2', ':long=windows', ':v2', ':all')
ARGUMENTS += (':jsonl', ':e', ':ltr', ':features=sum_all,units=8', ':starts,markers=typed', ':glue:rte')


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Starts a run with changed words in its command line. The run must refuse in one line, or be able to train.

    Attempts whose number is a multiple of FULL train. The others stop before the first step.
    """
    rng = random.Random(f'{seed} overrides {number}')
    world.trained('rte')  # also makes the encoder of the tasks
    workdir = world.make_folder(f'override-{number}') / 'run'
    if rng.random() < 0.75:
        words = world.arguments(rng.choice(TRAININGS), workdir)
    elif rng.random() < 0.6:
        kind = rng.choice(TRAINED)
        shutil.copytree(world.trained(kind), workdir)
        words = world.arguments(kind, workdir)
        words += [f'--config.run={rng.choice(CONTINUED)}'] if rng.random() < 0.5 else []
    else:
        recipe = rng.choice(list(USES))
        paths = {'first': world.trained(FIRST), 'rte': world.trained('rte')}
        needs = _keys(**{key: str(value).format(**paths) for key, value in USES[recipe].items()})
        words = [f'--config={world.repository}/configs/{recipe}', f'--workdir={workdir}', *needs]
    has_run = workdir.exists()
    keys = flatten(load_recipe(words[0].removeprefix('--config=')))
    full = number % FULL == 0
    if full:
        changed = [_in_range(words, keys, rng, 64) for _ in range(rng.randint(1, 5))]
    elif rng.random() < 0.6:
        changed = [_in_range(words, keys, rng) for _ in range(rng.randint(1, 4))]
    else:
        changed = [rng.choice(_EDITS)(words, keys, rng) for _ in range(rng.choice((1, 1, 2)))]
    if full:
        words += ['--config.steps=2', '--config.eval_every=0'] if 'steps' in keys else []
    what = f'{words[0].rpartition("/")[2]}: {", ".join(changed)}'
    ended = world.call(*words, training=full)
    not_finite = full and ended.status == 3 and not ended.fault
    wrong = '' if not_finite else ended.wrong
    trained = full and ended.status == 0 and (workdir / 'metrics.jsonl').exists()  # not a sweep or a conversion
    if not wrong and trained and (workdir / 'export' / 'hf').exists():
        wrong = check_trained(workdir)
    if wrong:
        return Outcome(False, f'{what}: {wrong}')
    if ended.status == 2 and (workdir / 'export').exists() and not has_run:
        return Outcome(False, f'{what}: refused, but wrote an export: {ended.err.strip()[-200:]}')
    shutil.rmtree(workdir.parent)
    return Outcome(True, f'{what}: {ended.err.strip().splitlines()[-1] if ended.status else "ready"}')


def _add(words: list[str], word: str) -> str:
    words.append(word)
    return f'{word!r:.90}'


def _value(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """Sets a key to its edited default, to the default of another key, or to a senseless value."""
    key, other = rng.choice(list(keys)), rng.choice(list(keys))
    value = rng.choice((mutate(str(keys[key]), rng), mutate(str(keys[key]), rng), keys[other], rng.choice(VALUES)))
    return _add(words, f'--config.{key}={value}')


def _in_range(words: list[str], keys: dict[str, object], rng: random.Random, most: float = math.inf) -> str:
    """Sets a key to a value from its range, which may conflict with other keys."""
    recipe = words[0].removeprefix('--config=')
    known = config_keys(load_recipe(recipe))
    key = rng.choice([key for key in known if key not in LEFT_OUT and (not key.startswith(HARD) or rng.random() < 0.1)])
    allowed = known[key].allowed
    values = [value for value in (*IN_RANGE, *re.findall(r'[\w.]+', allowed.words)) if allowed.contains(value)]
    values = [value for value in values if not isinstance(value, int | float) or value <= most]
    return _add(words, f'--config.{key}={rng.choice(values or [known[key].default])}')


def _key(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """Sets a key with an edited name."""
    key = rng.choice(list(keys))
    made = (mutate(key, rng), mutate(key, rng), f'{key}[0]', f'{key}.name', key.rpartition('.')[2], f'phases[{key}]')
    made += ('phases[9].steps', 'phases[-1].steps', 'phases[0]', 'items', '__class__', f'{key}.', key.upper())
    return _add(words, f'--config.{rng.choice(made)}={keys[key]}')


def _form(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """Edits a word, or writes it in the syntax of another program."""
    at = rng.randrange(len(words))
    name, _, value = words[at].lstrip('-').partition('=')
    made = (mutate(words[at], rng), f'--{name}', f'--no{name}', f'-{name}={value}', f'{name}={value}')
    made += (f'--{name}==={value}',)
    before, words[at] = words[at], rng.choice(made)
    if before.startswith('--workdir') and words[at] == made[0]:
        words[at] = before  # the edited path could be anywhere
    return f'{words[at]!r:.90} for {before!r:.60}'


def _verb(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    return _add(words, f'--config.run={rng.choice((*VERBS, mutate(rng.choice(VERBS), rng)))}')


def _argument(words: list[str], keys: dict[str, object], rng: random.Random) -> str:
    """Changes the argument of the recipe."""
    argument = rng.choice(ARGUMENTS)
    words[0] = words[0].rpartition('.py')[0] + '.py' + rng.choice((argument, argument, mutate(argument, rng)))
    return words[0].rpartition('/')[2]


_EDITS = (_value, _value, _key, _form, _verb, _argument)
