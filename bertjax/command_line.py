"""The flags of the command line, the errors about them, and the recipe that they name."""

import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from bertjax import __version__
from bertjax.config.check import unknown_key_error
from bertjax.config.files import find_recipe, load_recipe, recipe_names
from bertjax.config.plain import flatten
from bertjax.config.recipes import finetuning_config, pretraining_config
from bertjax.config.suggestions import FLAGS, VERBS, nearest_name
from bertjax.config.verb import EXAMPLES
from bertjax.errors import UserError
from bertjax.parallel.process_flags import ProcessFlags
from bertjax.tasks.registry import options
from bertjax.usage import load_verb, program_help, recipe_help, verbs

CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'The recipe: NAME or FILE.py, and perhaps :ARGUMENT.', lock_config=True
)
WORKDIR = flags.DEFINE_string('workdir', None, 'The folder of the run; it is created if needed.')
# The flags of a run with several processes whose launcher does not set them; see docs/scaling.md.
_COORDINATOR = flags.DEFINE_string('coordinator_address', None, 'HOST:PORT of the first process.')
_COUNT = flags.DEFINE_integer('num_processes', None, 'The number of processes of the run.')
_NUMBER = flags.DEFINE_integer('process_id', None, 'The index of this process, from 0.')
# The flags that an error may suggest for a misspelt flag.
_FLAGS = ('config', 'workdir', 'coordinator_address', 'num_processes', 'process_id')
_FLAGS += ('flagfile', 'help', 'helpfull', 'verbosity', 'version')


def read_process_flags() -> ProcessFlags:
    """Returns the flags for a run with several processes."""
    return ProcessFlags(_COORDINATOR.value, _COUNT.value, _NUMBER.value)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags as absl does, but raises every mistake as a UserError with a fix."""
    if any(argument in ('--help', '-h', '-help', '--helpshort') for argument in argv[1:]):
        recipes = _recipes(_expand_flags(argv))
        print(recipe_help(recipes[0]) if recipes else program_help())
        raise SystemExit(0)
    if '--version' in argv[1:]:
        print(f'bertjax {__version__}')
        raise SystemExit(0)
    _check_names(argv)
    argv = _expand_flags(argv)
    recipes, recipe_keys = _recipes(argv), {}
    if len(recipes) > 1:
        found, fix = f'{recipes[0]} and {recipes[1]}', 'leave all but one out'
        raise UserError('--config', found, 'one recipe', fix)
    first = next((a for a in argv if re.match(r'--?(no)?config\b', a)), '')
    if re.match(r'--?(no)?config\.', first):
        if not recipes:
            raise no_recipe_error()
        raise UserError(first, 'a change before --config', '--config before the changes', 'put --config=… first')
    if recipes:
        recipe = find_recipe(recipes[0])
        recipe_keys = flatten(load_recipe(recipe))  # Loaded before absl, which hides errors in it.
        _check_keys(argv, recipe_keys)
        argv = [f'--config={recipe}' if re.match(r'--?config=', a) else a for a in argv]
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as e:
        raise _unknown_flag_error(e.flagname, recipe_keys) from None
    except flags.IllegalFlagValueError as e:
        raise _wrong_value_error(str(e)) from None
    except (flags.Error, ValueError, TypeError) as e:
        raise UserError('command line', str(e), 'flags as in --help', 'correct the flag') from None
    except (RecursionError, MemoryError):  # Python's parser raises these.
        found = 'a value that is nested too deeply'
        raise UserError('command line', found, 'flags as in --help', 'correct the flag') from None
    if len(rest) > 1:
        raise _not_a_flag_error(rest[1], recipes)
    return rest


def _expand_flags(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with --flagfile replaced by its flags, and `--config RECIPE` by `--config=RECIPE`."""
    try:
        expanded = flags.FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)
    except flags.Error as e:
        raise UserError('--flagfile', str(e), 'a file with one flag per line', 'check the path') from None
    arguments = [argv[0]]
    for argument in expanded:
        if re.fullmatch(r'--?config', arguments[-1]):
            arguments[-1] += f'={argument}'
        else:
            arguments.append(argument)
    return arguments


def _recipes(argv: Sequence[str]) -> list[str]:
    """Returns the recipes in the result of `_expand_flags`, as the command line spells them."""
    return [argument.partition('=')[2] for argument in argv if re.match(r'--?config=', argument)]


def _check_names(argv: Sequence[str]) -> None:
    """Raises a UserError for an argument that is not UTF-8, because it cannot be written to config.json."""
    for argument in argv[1:]:
        if not argument.isprintable() and any('\udc80' <= char <= '\udcff' for char in argument):
            fix = 'rename it, or give its folder; if the name is UTF-8, set PYTHONUTF8=1'
            raise UserError('command line', argument, f'a name in {sys.getfilesystemencoding()}', fix)


def _check_keys(argv: Sequence[str], recipe_keys: Collection[str]) -> None:
    """Raises a UserError for a flag whose key is not in `recipe_keys`, the keys of the recipe.

    ml_collections also accepts attributes of a ConfigDict such as `items`, and indices into text and tuples such as
    `corpus[0]`, but fails when it sets them.
    """
    # 'phases[0].steps' makes 'phases' settable, too.
    settable = {*recipe_keys, *(key.partition('[')[0] for key in recipe_keys)}
    for argument in argv[1:]:
        match = re.match(r'--?(?:no)?config\.([^=]*)', argument)
        if not match or match[1] in settable:
            continue
        group = [key for key in recipe_keys if key.startswith(f'{match[1]}.')]
        if not group:
            raise unknown_key_error(match[1], recipe_keys)
        fix = f'for example --config.{next((key for key in group if key.endswith(".name")), group[0])}=VALUE'
        raise UserError(f'--config.{match[1]}', 'a group of keys', 'a single key', fix)


def no_recipe_error() -> UserError:
    """Returns the error for a command line without --config."""
    fix = 'for example --config=pretrain_tiny, or --config=configs/pretrain_tiny.py; see --help'
    return UserError('--config', 'nothing', 'the name or the path of a recipe', fix)


def _unknown_flag_error(name: str, recipe_keys: Collection[str]) -> UserError:
    """Returns the error for an unknown flag.

    It suggests a flag, a key of the recipe, or the bertjax name of another program's flag.
    """
    keys = recipe_keys or {*flatten(pretraining_config()), *flatten(finetuning_config('glue'))}
    near = nearest_name(re.sub(r'^(no)?config\.', '', name), [*_FLAGS, *keys], FLAGS, similarity=0.7)
    fix = f'did you mean --{"" if near in _FLAGS else "config."}{near}?' if near else 'see --help'
    return UserError(f'--{name}', 'an unknown flag', '--config, --workdir or --config.KEY', fix)


def _not_a_flag_error(word: str, recipes: Sequence[str]) -> UserError:
    """Returns the error for a word without --: a verb, a recipe, or KEY=VALUE, as other programs accept it."""
    verb = nearest_name(word, verbs(), VERBS, similarity=0.7)
    try:
        recipe = '' if recipes else find_recipe(word)
    except UserError:
        recipe = ''
    if recipe:
        fix = f'did you mean --config={word}?'
    elif word.partition('=')[0] in _FLAGS or re.match(r'config\.', word):
        fix = f'did you mean --{word}?'
    elif re.match(r'[\w.]+=', word):
        fix = f'did you mean --config.{word}?'
    elif verb:
        example = '' if recipes else f'--config={_example(verb)} '
        fix = f'did you mean {example}--config.run={verb}?'
    else:
        fix = 'see --help'
    return UserError('command line', repr(word), 'only flags', fix)


def _example(verb: str) -> str:
    """Returns a recipe that this verb can run."""
    return verb if verb in recipe_names() else EXAMPLES.get(load_verb(verb).VERB.needs, 'RECIPE')


def _wrong_value_error(message: str) -> UserError:
    match = re.match(r'flag --(\S+?)=(.*?): (.*)', message, re.DOTALL)
    key, value, reason = match.groups() if match else ('config', '', message)
    kind = re.search(r'\b(int|integer|float|boolean)\b', reason)
    integer = 'a whole number'
    expected = {'int': integer, 'integer': integer, 'float': 'a number', 'boolean': 'true or false'}
    return UserError(f'--{key}', repr(value), expected[kind[1]] if kind else reason, f'write it as --{key}=VALUE')


def find_verb(config: ConfigDict) -> types.ModuleType:
    """Returns the module of config.run, and checks that the recipe has the sections that the verb needs.

    Raises:
      UserError: The verb does not exist, or it needs another recipe.
    """
    name = config.run
    if name not in verbs():
        possible = [verb for verb in verbs() if load_verb(verb).VERB.needs in ('', *config)]
        near = nearest_name(name, possible, VERBS) or nearest_name(name, verbs(), VERBS)
        fix = f'did you mean --config.run={near}?' if near else 'see --help'
        raise UserError('config.run', repr(name), 'one of ' + ', '.join(verbs()), fix)
    module = load_verb(name)
    if module.VERB.needs not in ('', *config):
        found, fix = f'a recipe without config.{module.VERB.needs}', f'give a recipe such as {_example(name)}'
        raise UserError(f'--config.run={name}', found, 'a recipe that has it', fix)
    if 'distill' in config and not module.VERB.teacher:
        fix = 'leave out --config.run, or give a recipe without a teacher'
        raise UserError(f'--config.run={name}', 'a recipe with config.distill', 'run=distill', fix)
    return module


def arguments(run: Callable[..., None], config: ConfigDict) -> dict[str, Any]:
    """Returns the values of the command line for the parameters of a verb's `run`; see `config.verb.Verb`."""
    getters = {'recipe': named_recipe, 'flag_keys': flag_keys, 'command_line_keys': lambda: command_line_keys(config)}
    return {name: getters[name]() for name in inspect.signature(run).parameters if name in getters}


def named_recipe() -> str:
    """Returns the recipe as the command line spells it."""
    (recipe,) = _recipes(_expand_flags(sys.argv))
    return recipe


def describe_default_argument(config: ConfigDict) -> str:
    """Describes the recipe's default argument if the command line omits it, as in `glue` for `glue:rte`; else ''."""
    recipe = named_recipe()
    inner = recipe.partition(':')[2] if 'distill' in config else recipe
    if 'task' not in config or ':' in inner:
        return ''
    named_options = [name for name, option in options(config.task.kind).items() if option.named and name in config.task]
    values = [f'task.{name}={config.task[name]}' for name in named_options if f'task.{name}' not in flag_keys()]
    return f'--config={recipe} without an argument means {", ".join(values)}' if values else ''


def flag_keys() -> set[str]:
    """Returns the config keys that the command line sets by --config.KEY=VALUE."""
    return set(config_flags.get_override_values(flags.FLAGS['config']))


def command_line_keys(config: ConfigDict) -> set[str]:
    """Returns the config keys that `--config.KEY=VALUE` sets, or that the argument of the recipe changes or names."""
    flag = flags.FLAGS['config']
    keys = flag_keys()
    recipe, _, argument = flag.config_filename.partition(':')
    if argument:
        values = flatten(load_recipe(flag.config_filename))
        try:
            without = flatten(load_recipe(recipe))
        except UserError:  # The recipe needs an argument, so only the keys that it names are known.
            without = values
        keys |= {key for key, value in values.items() if value != without.get(key)}
        if '=' not in argument.split(',')[0] and 'task' in config:  # The argument is a name, perhaps the default one.
            named_options = [name for name, option in options(config.task.kind).items() if option.named]
            keys |= {f'task.{name}' for name in named_options if name in config.task}
    return keys
