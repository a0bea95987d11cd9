"""The command line: its flags, their short form, the errors about flags, and the recipe."""

import itertools
import re
import sys
from collections.abc import Collection, Sequence

from absl import flags
from ml_collections import config_flags

from bertjax import __version__
from bertjax.config.check import check_key, check_used
from bertjax.config.files import Recipe, complete_phases, find_recipe, load_recipe, recipe_names
from bertjax.config.plain import flatten
from bertjax.config.recipes import finetuning_config, pretraining_config
from bertjax.config.saved_config import make_recipe
from bertjax.config.suggestions import ALIASES, FLAGS, VERBS, nearest_name
from bertjax.errors import UserError
from bertjax.parallel.process_flags import ProcessFlags
from bertjax.usage import example_recipe, program_help, recipe_help, verbs

# The parsed arguments in their long form, from which ml_collections reads the changed keys. By default,
# ml_collections reads sys.argv, even during this import, and then raises absl's error for a missing --flagfile.
_ARGV: list[str] = []
CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'The recipe: NAME or FILE.py, optionally with :ARGUMENT.', lock_config=True, sys_argv=_ARGV
)
WORKDIR = flags.DEFINE_string('workdir', None, 'The folder of the run; it is created if needed.')
# A run with several processes needs these flags if its environment does not give the addresses (docs/scaling.md).
_COORDINATOR = flags.DEFINE_string('coordinator_address', None, 'HOST:PORT of the first process.')
_COUNT = flags.DEFINE_integer('num_processes', None, 'The number of processes of the run.')
_NUMBER = flags.DEFINE_integer('process_id', None, 'The index of this process, from 0.')
_KEY_VALUE = re.compile(r'[\w.\[\]]+=')
_VALUE_FLAGS = ('config', 'workdir', 'coordinator_address', 'num_processes', 'process_id', 'flagfile', 'verbosity')
_NEEDS_VALUE = re.compile(rf'--?({"|".join(_VALUE_FLAGS)}|config\.[^=]+)')
# The flags that KEY=VALUE may set, and that errors suggest for misspelled flags.
_FLAGS = (*_VALUE_FLAGS, 'help', 'helpfull', 'version')


def read_process_flags() -> ProcessFlags:
    """Returns the flags for a run with several processes."""
    return ProcessFlags(_COORDINATOR.value, _COUNT.value, _NUMBER.value)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags as absl does, but raises every mistake as a UserError with a fix.

    Returns:
      A list: the name of the program, and all flags in their long form if any argument does not begin with '-'.
    """
    if any(argument in ('--help', '-h', '-help', '--helpshort') for argument in argv[1:]):
        recipes = _recipes(to_flags(argv))
        print(recipe_help(recipes[0]) if recipes else program_help())
        raise SystemExit(0)
    if '--version' in argv[1:]:
        print(f'bertjax {__version__}')
        raise SystemExit(0)
    for argument in argv[1:]:
        if any('\udc80' <= char <= '\udcff' for char in argument):  # undecodable; config.json could not record it
            fix = 'rename the file, or give its folder; if the name is UTF-8, set PYTHONUTF8=1'
            raise UserError('command line', argument, f'a name in {sys.getfilesystemencoding()}', fix)
    is_short = any(not argument.startswith('-') for argument in argv[1:])
    argv = long_form = to_flags(argv)
    recipes, recipe_keys = _recipes(argv), {}
    if len(recipes) > 1:
        found, fix = f'{recipes[0]} and {recipes[1]}', 'keep only one of them'
        raise UserError('--config', found, 'one recipe', fix)
    first = next((a for a in argv if re.match(r'--?(no)?config\b', a)), '')
    if re.match(r'--?(no)?config\.', first):
        if not recipes:
            raise no_recipe_error()
        raise UserError(first, 'a change before --config', '--config before the changes', 'put --config=… first')
    if recipes:
        recipe = find_recipe(recipes[0])
        recipe_keys = flatten(load_recipe(recipe))  # absl would hide the errors of the recipe.
        for argument in argv[1:]:
            if match := re.match(r'--?(?:no)?config\.([^=]*)', argument):
                check_key(match[1], recipe_keys)
        argv = [f'--config={recipe}' if re.match(r'--?config=', a) else a for a in argv]
    _ARGV[:] = long_form
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as e:
        raise _unknown_flag_error(e.flagname, recipe_keys) from None
    except flags.IllegalFlagValueError as e:
        raise _wrong_value_error(str(e)) from None
    except (flags.Error, ValueError, TypeError, KeyError, RecursionError, MemoryError) as e:
        # Python's parser raises RecursionError and MemoryError for deeply nested values.
        found = 'a value that is nested too deeply' if isinstance(e, RecursionError | MemoryError) else str(e)
        raise UserError('command line', found, 'flags as in --help', 'correct the flag') from None
    if len(rest) > 1:
        raise UserError('command line', repr(rest[1]), 'only flags', 'see --help')
    return [argv[0], *(long_form[1:] if is_short else ())]


def to_flags(argv: Sequence[str]) -> list[str]:
    """Returns `argv` with all arguments as flags of the form --NAME=VALUE.

    --flagfile=FILE is replaced by the flags in FILE. The word RECIPE is short for --config=RECIPE, and KEY=VALUE is
    short for --config.KEY=VALUE. KEY may also be a flag such as `workdir`, or one of `ALIASES`.

    Raises:
      UserError: A word is neither a recipe nor KEY=VALUE, or the file of --flagfile cannot be read.
    """
    try:
        expanded = flags.FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)
    except (flags.Error, UnicodeDecodeError) as e:
        raise UserError('--flagfile', str(e), 'a file with one flag per line', 'check the path') from None
    arguments = [argv[0]]
    for argument in expanded:
        if not argument.startswith('-') and _NEEDS_VALUE.fullmatch(arguments[-1]):
            arguments[-1] += f'={argument}'
        else:
            arguments.append(argument)
    recipes, rest = [], []
    for before, argument in itertools.pairwise(arguments):
        if argument.startswith('-') or _KEY_VALUE.match(argument):
            rest.append(argument)
        else:
            _check_recipe(argument, before)
            recipes.append(f'--config={argument}')
    named = _recipes([*recipes, *rest])
    rest = [argument if argument.startswith('-') else _pair_flag(argument, named) for argument in rest]
    return [argv[0], *recipes, *rest]


def _pair_flag(pair: str, recipes: Sequence[str]) -> str:
    """Returns the long form of `pair`, an argument KEY=VALUE. ALIASES stand for flags and for keys of the recipe."""
    key, _, value = pair.partition('=')
    if key in ALIASES:
        keys = flatten(load_recipe(find_recipe(recipes[0]))) if recipes else {}
        key = next((ours for ours in FLAGS[key] if ours in (*keys, *_FLAGS)), key)
    is_flag = key in _FLAGS or key.startswith('config.')
    return f'--{key}={value}' if is_flag else f'--config.{key}={value}'


def _check_recipe(word: str, before: str) -> None:
    """Raises a UserError unless `word`, which follows the argument `before`, is a recipe."""
    try:
        find_recipe(word)
    except UserError:
        flag = re.fullmatch(r'--?(\w\w+)', before)
        if flag and not {flag[1], flag[1].removeprefix('no')} & {*flags.FLAGS}:  # `word` may be the flag's value
            raise _unknown_flag_error(flag[1], ()) from None
        if not re.fullmatch(r'\w+', word):
            raise
        recipe = nearest_name(word, recipe_names(), {}, similarity=0.7)
        verb = nearest_name(word, verbs(), VERBS, similarity=0.7)
        flag = nearest_name(word, _FLAGS, {}, similarity=0.7)
        near = recipe or (f'{example_recipe(verb)} run={verb}' if verb else flag and f'--{flag}')
        fix = f'did you mean {near}?' if near else 'see --help'
        raise UserError('command line', repr(word), 'the name or the path of a recipe, or KEY=VALUE', fix) from None


def _recipes(argv: Sequence[str]) -> list[str]:
    """Returns the values of the flags --config=VALUE in `argv`."""
    return [argument.partition('=')[2] for argument in argv if re.match(r'--?config=', argument)]


def no_recipe_error() -> UserError:
    """Returns the error for a command line without --config."""
    fix = 'for example --config=pretrain_tiny, or --config=configs/pretrain_tiny.py; see --help'
    return UserError('--config', 'nothing', 'the name or the path of a recipe', fix)


def _unknown_flag_error(name: str, recipe_keys: Collection[str]) -> UserError:
    """Returns an error that suggests a flag, a key of the recipe, or the bertjax name of another program's flag."""
    keys = recipe_keys or {*flatten(pretraining_config()), *flatten(finetuning_config('glue'))}
    near = nearest_name(re.sub(r'^(no)?config\.', '', name), [*_FLAGS, *keys], FLAGS, similarity=0.7)
    fix = f'did you mean --{"" if near in _FLAGS else "config."}{near}?' if near else 'see --help'
    return UserError(f'--{name}', 'an unknown flag', '--config, --workdir or --config.KEY', fix)


def _wrong_value_error(message: str) -> UserError:
    match = re.match(r'flag --(\S+?)=(.*?): (.*)', message, re.DOTALL)
    key, value, reason = match.groups() if match else ('config', '', message)
    if 'as tuple.' in reason:
        return UserError(f'--{key}', repr(value), "a list such as (1, 2) or ('a text',)", 'correct the list, in quotes')
    kind = re.search(r'\b(int|float|boolean)(eger)?\b', reason)
    expected = {'int': 'a whole number', 'float': 'a number', 'boolean': 'true or false'}
    return UserError(f'--{key}', repr(value), expected[kind[1]] if kind else reason, f'write it as --{key}=VALUE')


def read_recipe() -> Recipe:
    """Returns the recipe of the parsed flags.

    Raises:
      UserError: There is no recipe, or a flag has no effect.
    """
    if CONFIG.value is None:
        raise no_recipe_error()
    (name,) = _recipes(_ARGV)
    flag_keys = config_flags.get_override_values(flags.FLAGS['config'])
    if 'phases' in flag_keys:
        CONFIG.value.phases = complete_phases(CONFIG.value.phases)
    check_used(CONFIG.value, flag_keys)
    return make_recipe(name, CONFIG.value, flag_keys)
