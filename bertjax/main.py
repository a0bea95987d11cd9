"""The one entry point: `bertjax --config=RECIPE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]`.

Also as `python -m bertjax`, and as `python -m bertjax.main`, which needs no installation.

Reads the flags, loads the recipe and hands both to the verb `config.run`, a module of `bertjax/runs/`.

Exit status: 0 done; 1 a fault of ours; 2 a mistake that the user can mend, said in one line; 3 stopped on
non-finite steps; 75 saved after SIGTERM or Ctrl-C, start again to continue; 130 or 143 ended at once by a third Ctrl-C
or SIGTERM, or by one that came while nothing was being trained.
"""

import importlib
import itertools
import logging as std_logging
import pathlib
import pkgutil
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from bertjax import __version__, runs
from bertjax.config import flatten, unknown_key_error
from bertjax.errors import StoppedError, UserError
from bertjax.experiment.check import check_ranges
from bertjax.files import disk
from bertjax.recipe_files import find_recipe, load_recipe, recipe_names
from bertjax.tasks.registry import options
from bertjax.terminal import guard_streams

USAGE = """bertjax: pre-train BERT and take it to its tasks.

  bertjax --config=RECIPE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]
  python -m bertjax.main ...     the same, where bertjax is not installed

  --config=RECIPE     the name of one that comes with bertjax:
                      {recipes};
                      or a file such as configs/pretrain_tiny.py; its docstring says what it does
  --workdir=DIR       where everything goes: config.json, tokenizer/, store/, checkpoints/, metrics.jsonl, export/
  --config.KEY=VALUE  changes one key of the recipe, for example --config.batch_size=64
  --config.run=VERB   {verbs}
  --version           of bertjax

First steps:
  bertjax --config=pretrain_tiny --workdir=out/tiny
  bertjax --config=pretrain_tiny --workdir=out/mine --config.corpus='texts/*.txt'
  bertjax --config=glue:rte --workdir=out/rte --config.init=out/tiny

The same command in the same workdir continues where it stopped. --helpfull lists every flag there is.
"""

_CONFIG = config_flags.DEFINE_config_file('config', None, 'A recipe: NAME or FILE.py, and :ARGUMENT.', lock_config=True)
# A key of the recipe -> the verbs that cannot do without, and a recipe that has it.
NEEDS = {
    'corpus': (('pretrain', 'vocab', 'corpus', 'compile'), 'pretrain_base'),
    'task': (('finetune', 'evaluate', 'predict'), 'glue:rte'),
}
# Verbs about an existing run, whose config they take, except for keys that the command line sets.
ABOUT_A_RUN = ('evaluate', 'predict', 'export')
# Verbs that say what to run next, with the same recipe.
TRAINING = ('pretrain', 'finetune')
_RECIPE_FLAGS = ('--config', '-config')  # as absl takes them
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run, made when absent.')


def verbs() -> list[str]:
    """Names of the verbs, one file each in bertjax/runs/."""
    return sorted(module.name for module in pkgutil.iter_modules(runs.__path__))


def parse_flags(argv: Sequence[str]) -> list[str]:
    """absl's flag parser, except that every mistake is a UserError that says what to do."""
    if any(argument in ('--help', '-h', '-help', '--helpshort') for argument in argv[1:]):
        print(USAGE.format(verbs=', '.join(verbs()), recipes=', '.join(recipe_names())))
        raise SystemExit(0)
    if '--version' in argv[1:]:
        print(f'bertjax {__version__}')
        raise SystemExit(0)
    _check_names(argv)
    recipe = _given_recipe(argv)
    if recipe is not None:
        found = find_recipe(recipe)
        load_recipe(found)  # before absl swallows what is wrong with it
        argv = [_naming(found, a, before) for before, a in itertools.pairwise(['', *argv])]
    given = next((a for a in argv if re.match(r'--?config\b', a)), '')
    if re.match(r'--?config\.', given):
        if recipe is None:
            raise _no_recipe()
        raise UserError(given, 'it before --config', 'the recipe before the changes to it', 'put --config=… first')
    try:
        rest = flags.FLAGS(list(argv))
    except flags.UnrecognizedFlagError as e:
        raise UserError(
            f'--{e.flagname}', 'an unknown flag', '--config, --workdir or --config.KEY', 'see --help'
        ) from None
    except (AttributeError, KeyError, IndexError) as e:  # ml_collections: a key that the recipe does not have
        given = re.findall(r'--?config\.([\w.\[\]]+)', ' '.join(argv))
        config = load_recipe(found)
        bad = next((key for key in given if not _exists(config, key)), None)
        if bad is None:
            raise
        raise unknown_key_error(bad, flatten(config)) from e
    except flags.IllegalFlagValueError as e:
        raise _wrong_value(str(e)) from None
    except (flags.Error, ValueError, TypeError) as e:
        raise UserError('command line', str(e), 'flags as in --help', 'correct the flag') from None
    if len(rest) > 1:
        raise UserError('command line', repr(rest[1]), 'only flags', f'did you mean --{rest[1]}? see --help')
    return rest


def _given_recipe(argv: Sequence[str]) -> str | None:
    """The recipe as the command line spells it: `--config=RECIPE` or `--config RECIPE`."""
    joined = [argument.split('=', 1)[1] for argument in argv if re.match(r'--?config=', argument)]
    apart = [argument for before, argument in itertools.pairwise(argv) if before in _RECIPE_FLAGS]
    return next(iter(joined + apart), None)


def _naming(recipe: str, argument: str, before: str) -> str:
    """`argument`, which comes after `before`, with `recipe` in place of the one that it names."""
    if before in _RECIPE_FLAGS:
        return recipe
    return re.sub(r'^(--?config=).*', lambda match: match[1] + recipe, argument, flags=re.DOTALL)


def _check_names(argv: Sequence[str]) -> None:
    """Refuses what is no text, and could not be written to config.json: a file name of other bytes than UTF-8's."""
    for argument in argv[1:]:
        if not argument.isprintable() and any('\udc80' <= char <= '\udcff' for char in argument):
            mend = 'rename it, or give the folder that it is in; PYTHONUTF8=1 where the name is UTF-8 all the same'
            raise UserError('command line', argument, f'a name in {sys.getfilesystemencoding()}', mend)


def _no_recipe() -> UserError:
    mend = 'for example --config=pretrain_tiny, or --config=configs/pretrain_tiny.py'
    return UserError('--config', 'nothing', 'the name or the path of a recipe', mend)


def _wrong_value(message: str) -> UserError:
    match = re.match(r'flag --(\S+?)=(.*?): (.*)', message, re.DOTALL)
    key, value, reason = match.groups() if match else ('config', '', message)
    kind = re.search(r'\b(int|integer|float|boolean)\b', reason)
    whole, number = 'a whole number', 'a number'
    wanted = {'int': whole, 'integer': whole, 'float': number, 'boolean': 'true or false'}
    return UserError(f'--{key}', repr(value), wanted[kind[1]] if kind else reason, f'write it as --{key}=VALUE')


def _exists(config, key: str) -> bool:
    try:
        config_flags.config_path.get_value(key, config)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return False
    return True


def main(argv: Sequence[str]) -> None:
    """Checks the two flags and calls the verb."""
    del argv
    config, workdir = _CONFIG.value, _WORKDIR.value
    if config is None:
        raise _no_recipe()
    if not workdir:
        raise UserError('--workdir', 'nothing', 'a folder for the run', 'for example --workdir=out/tiny')
    if '://' in workdir:
        raise UserError(
            '--workdir', workdir, 'a local or mounted folder', 'mount the bucket, or copy the run there later'
        )
    blocking = next((path for path in (pathlib.Path(workdir), *pathlib.Path(workdir).parents) if path.exists()), None)
    if blocking and not blocking.is_dir():
        raise UserError('--workdir', f'{blocking}, which is a file', 'a folder for the run', 'give another path')
    disk.check_open_files()
    check_ranges(config)
    if config.run not in verbs():
        raise UserError('config.run', repr(config.run), 'one of ' + ', '.join(verbs()), 'correct --config.run')
    for key, (names, example) in NEEDS.items():
        if config.run in names and key not in config:
            mend = f'give a recipe such as {example}'
            raise UserError(f'--config.run={config.run}', f'a recipe without config.{key}', 'one that has it', mend)
    run = importlib.import_module(f'bertjax.runs.{config.run}').run
    if config.run in ABOUT_A_RUN:
        run(config, workdir, _given_keys(config))
    elif config.run in TRAINING:
        run(config, workdir, _given_recipe(sys.argv) or flags.FLAGS['config'].config_filename)
    else:
        run(config, workdir)


def _given_keys(config: ConfigDict) -> set[str]:
    """The keys that the command line sets: one by one, and those that the recipe's argument changes or names."""
    flag = flags.FLAGS['config']
    keys = set(config_flags.get_override_values(flag))
    recipe, _, argument = flag.config_filename.partition(':')
    if argument:
        without = flatten(load_recipe(recipe))
        keys |= {key for key, value in flatten(load_recipe(flag.config_filename)).items() if value != without.get(key)}
        if '=' not in argument.split(',')[0] and 'task' in config:  # a name, that may be the usual one
            named = [name for name, option in options(config.task.kind).items() if option.named]
            keys |= {f'task.{name}' for name in named if name in config.task}
    return keys


def _guarded(function):
    """Turns the exceptions that are no fault of ours into one line and an exit status."""

    def call(argv):
        try:
            return function(argv)
        except (UserError, StoppedError) as e:
            sys.stdout.flush()
            print(f'error: {e}' if isinstance(e, UserError) else str(e), file=sys.stderr)
            sys.exit(e.exit_status)
        except KeyboardInterrupt:
            print('stopped; the same command continues with what is whole', file=sys.stderr)
            sys.exit(130)
        except Exception as e:
            workdir = _WORKDIR.value if flags.FLAGS.is_parsed() else None
            refused = disk.refused(e, workdir or '.')
            if refused is None:
                raise
            sys.stdout.flush()
            print(f'error: {refused}', file=sys.stderr)
            sys.exit(refused.exit_status)

    return call


class _Plain(std_logging.Formatter):
    """`warning: …` in place of absl's thread numbers and times."""

    def format(self, record: std_logging.LogRecord) -> str:
        return f'{record.levelname.lower()}: {super().format(record)}'


def _not_of_orbax(record: std_logging.LogRecord) -> bool:
    """Orbax logs what it raises, with tracebacks of its threads."""
    return '/orbax/checkpoint/' not in record.pathname and record.name != 'asyncio'


def _print_unraisable(fault: Any) -> None:
    """As Python does, but for what tensorstore's threads say after a save that failed: that was raised already."""
    if str(fault.exc_value) != 'Event loop is closed':
        sys.__unraisablehook__(fault)


def console() -> None:
    """Entry of `python -m bertjax.main` and of the command `bertjax`."""
    guard_streams()
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.setStream(sys.stderr)  # not the one that was replaced
    logging.get_absl_handler().setFormatter(_Plain('%(message)s'))
    logging.get_absl_handler().addFilter(_not_of_orbax)
    sys.unraisablehook = _print_unraisable
    app.run(_guarded(main), flags_parser=_guarded(parse_flags))


if __name__ == '__main__':
    console()
