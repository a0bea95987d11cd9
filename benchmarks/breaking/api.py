"""Calls of `bertjax.load` and of the methods of a model, with many wrong or senseless arguments."""

import contextlib
import functools
import inspect
import io
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from golden_runs import FIRST

import bertjax
from bertjax.errors import UserError
from breaking.world import HANGS, Outcome, World, finite, limited

MODELS = (FIRST, FIRST, 'rte', 'stsb', 'tagging', 'squad', 'choice')
# {model: the methods that it supports}. They are called more often than the methods of other models.
METHODS = {
    FIRST: ('fill', 'score', 'next_sentence', 'extend'),
    'rte': ('classify',),
    'stsb': ('classify',),
    'tagging': ('tag',),
    'squad': ('answer',),
    'choice': ('choose',),
}
EVERY = ('encode', 'pieces', 'spans', 'attention', 'batch', 'save', 'with_params', 'load')

# ONE has single texts, and TWO has lists of two texts. The arguments of a call come from only one of them.
ONE = ('the red river', 'a bird [MASK] over the old house', '[MASK] [MASK]', '', ' ', 'x' * 9000, 'the ' * 500, '\0')
ONE += ('\ud800', '\U0001f600 é e\u0301', '[SEP] [CLS] [PAD]', 'a\u2028b\r\nc\td', '[MASK]' * 60, np.str_('a [MASK]'))
TWO = (
    ['the wind', 'stone [MASK]'],
    ('[MASK]', 'red [MASK]'),
    np.array(['a b', '[MASK]']),
    np.array(['a', 'b'], object),
)
TWO += (['', 'a'], ['x' * 500, 'y'], [['the', 'bird'], ['runs']], ['the river', ['the', 'bird']])
ENDINGS = (['falls', 'runs'], ('a', 'b', 'c'), ['', 'x'], np.array(['falls', 'runs']), ['falls', 'falls'], ['falls'])
TWO_ENDINGS = ([['falls', 'runs'], ['sings', 'is red']], [['falls', 'a'], ['runs', 'sings', 'is']], [('a', 'b')] * 2)
NUMBERS = (0, 1, 2, 3, 5, -1, -2, 0.5, 1.0, np.int64(1), np.float32(0.5))
ODD = (None, True, False, 7, -1, 0, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e300, -1e-300, float('nan'), float('inf'))
ODD += ('', 'abc', '3', b'bytes', {'a'}, {}, {'a': 1}, {0: 'a'}, [], (), [[]], [None], [0, 1], [0, None], [1.5], [[0]])
ODD += (['a', 7], ['a', None], [b'a'], np.zeros(0), np.zeros(2), np.zeros((2, 2)), np.array(3), np.array('a'))
ODD += (np.array([['a']]), np.int32(2), np.float64('nan'), np.str_('a'), np.bool_(True), range(3), object(), str, len)
ODD += (pathlib.Path('a'), 1j, Ellipsis, NotImplemented, slice(2), bytearray(b'a'), memoryview(b'a'), frozenset('a'))
ODD += (Exception('a'), ['a'] * 3)
GOOD: dict[str, tuple[Any, ...]] = {
    'layers': (-1, 0, 2, (0, 1), [1, 2], np.array([0, 2]), np.int64(1), range(2)),
    'pool': ('mean', 'cls', 'pooler', None),
    'combine': ('mean', 'sum', 'concat', 'weighted'),
    'weights': ((), (1.0, 2.0), [1], np.ones(2), (0, 0)),
    'normalize': (True, False),
    'jointly': (True, False),
    'aggregation_strategy': ('first', 'average', 'max', 'simple'),
    'tokens': (1, 2, 3),
    'format': ('hf', 'orbax', 'google', 'google', 'hf'),
    'dtype': ('float32', 'bfloat16', 'float16', np.float32),
    'dropout': (0.0, 0.1, 1.0, None),
    'step': (0, 4, 12, 13),
    'batch_size': (1, 2, 64),
    'max_length': (0, 4, 16, 32),
}


def attempt(world: World, seed: int, number: int) -> Outcome:
    """Makes one call. It must raise a UserError of one line and write no file, or return finite results."""
    rng = random.Random(f'{seed} api {number}')
    model = rng.choice(MODELS)
    method = rng.choice((*METHODS[model] * 6, *EVERY, rng.choice(sum(METHODS.values(), ()))))
    root = world.make_folder(f'api-{number}')
    function = _function(world, model, method)
    arguments = _arguments(function, rng, {'path': _paths(world, model, method, root)})
    what = f'{model} {method}({", ".join(f"{name}={value!r:.60}" for name, value in arguments.items())})'
    before = _files(root)
    try:
        with contextlib.chdir(root), contextlib.redirect_stderr(io.StringIO()), limited(HANGS):
            result = function(**arguments)
    except UserError as error:
        wrong = '' if '\n' not in str(error) else 'more than one line'
        new_files = _files(root) - before
        if new_files:
            wrong = f'refused, but wrote {sorted(new_files)[:5]}'
        outcome = str(error)
    except BaseException as error:
        wrong = outcome = repr(error)
    else:
        wrong, outcome = _wrong(method, arguments, result, root), 'done'
    if wrong:
        return Outcome(False, f'{what}: {wrong}')
    shutil.rmtree(root)
    return Outcome(True, f'{what}: {outcome}')


@functools.cache
def _loaded(path: pathlib.Path) -> bertjax.Bert:
    return bertjax.load(path)


def _function(world: World, model: str, method: str) -> Callable[..., Any]:
    return bertjax.load if method == 'load' else getattr(_loaded(world.trained(model)), method)


def _arguments(function: Callable[..., Any], rng: random.Random, good: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Returns a value for each required parameter and for some optional ones."""
    chosen, bad, two = {}, rng.choice((0.0, 0.1, 0.4)), rng.random() < 0.4
    texts = ('texts', 'pairs', 'question', 'context', 'first', 'second', 'sentences')
    good = {**GOOD, **dict.fromkeys(texts, TWO if two else ONE), 'endings': TWO_ENDINGS if two else ENDINGS, **good}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty or rng.random() < (0.7 if name == 'pairs' else 0.4):
            values = good.get(name, NUMBERS)
            chosen[name] = rng.choice(ODD if rng.random() < bad else values)
    return chosen


def _paths(world: World, model: str, method: str, root: pathlib.Path) -> tuple[Any, ...]:
    """Returns candidates for a path: for `load`, possible models; for `save`, folders in `root`."""
    (root / 'full').mkdir()
    (root / 'full' / 'file').write_text('text')
    (root / 'empty').mkdir()
    if method == 'load':
        run = world.trained(model)
        made = (run, run, str(run), run / 'export' / 'hf', run / 'export', run / 'checkpoints', run / 'config.json')
        return (*made, root, root / 'full' / 'file', f'{run}/', 'no/such', 'name', '', '.', '~', '\0', 'a' * 5000)
    new = [root / 'new', str(root / 'new'), 'new', root / 'deeper' / 'new', root / 'empty', './new/', 'ä\u202e']
    file = root / 'full' / 'file'
    return (*new, *new, root / 'full', file, file / 'a', '', '.', '..', '\0', 'a' * 300)


def _files(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob('*')}


def _wrong(method: str, arguments: dict[str, Any], result: Any, root: pathlib.Path) -> str:
    """Describes the fault of a result; '' if it has none."""
    if method == 'load':
        return '' if finite(result.encode('the river')) else 'features are not finite'
    if method == 'save':
        if arguments.get('format', 'hf') not in ('hf', 'orbax', 'google'):
            return ''
        with contextlib.chdir(root):
            same = bertjax.load(arguments['path']).encode('the river')
        return '' if finite(same) else 'the features of the saved model are not finite'
    if method == 'with_params':
        return ''
    if not finite(jax.device_get(result)):
        return f'not finite: {result!r:.300}'
    first = next(iter(arguments.values()))
    if method != 'batch' and not isinstance(first, str) and len(result) != len(first):
        return f'{len(result)} results for {len(first)}'
    return ''
