"""The entry point: `bertjax --config=RECIPE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]`.

`python -m bertjax` does the same, and `python -m bertjax.main` needs no installation.

The module reads the flags, loads the recipe and calls the verb `config.run`, a module of `bertjax/commands/`.

Exit status: 0 done; 1 a bug, or a workdir in a bucket that could not be published; 2 a mistake that the user can fix,
reported in one line; 3 stopped on non-finite steps; 4 another process of the run was lost, or the run hung; 75 saved
after SIGTERM or Ctrl-C, and the same command continues; 130 or 143 ended at once by a third Ctrl-C or SIGTERM, or by
the first one outside of training.
"""

import contextlib
import gc
import logging as std_logging
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

if __name__ == '__main__' and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Until all imports are done, because JAX swallows a KeyboardInterrupt during garbage collection.

from absl import app, flags, logging

from bertjax.errors import LostError, StoppedError, UserError

try:
    import jax  # noqa: F401
except (ImportError, RuntimeError) as error:  # jaxlib is missing, or does not match jax.
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    print('error:', UserError('jax', reason, 'jax and its own jaxlib', "pip install -U 'jax>=0.10.2'"), file=sys.stderr)
    raise SystemExit(UserError.exit_status) from None

from bertjax import memory
from bertjax.command_line import (
    CONFIG,
    WORKDIR,
    arguments,
    describe_default_argument,
    find_verb,
    no_recipe_error,
    parse_flags,
    read_process_flags,
)
from bertjax.config.check import check_ranges
from bertjax.config.verb import Verb
from bertjax.files import disk, mapped
from bertjax.files.paths import check_address, is_remote
from bertjax.parallel import distributed
from bertjax.parallel.process_flags import supervise
from bertjax.terminal import guard_streams
from bertjax.usage import load_verb, verbs


def main(argv: Sequence[str]) -> None:
    """Checks the flags and the config, joins the other processes of the run, and calls the verb."""
    del argv
    config, workdir = CONFIG.value, WORKDIR.value
    if config is None:
        raise no_recipe_error()
    in_bucket = is_remote(workdir or '')
    if in_bucket:
        check_address(workdir, '--workdir')
    else:
        workdir = workdir and os.path.expanduser(workdir)
        _check_folder(pathlib.Path(workdir or '.'))
    disk.check_open_files()
    check_ranges(config)
    module = find_verb(config)
    verb: Verb = module.VERB
    if not workdir and verb.workdir:
        raise UserError('--workdir', 'nothing', 'a folder for the run', 'for example --workdir=out/tiny')
    if verb.devices:
        memory.check_address_space()
    mapped.explain_bus_errors()
    _join_processes(config.run, verb)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if verb.trains and (note := describe_default_argument(config)):
        print(note)
    if in_bucket:
        from bertjax.workdir.mirror import mirrored_workdir  # Imports all export formats, so only if needed.
    with mirrored_workdir(workdir, verb.bucket) if in_bucket else contextlib.nullcontext(workdir) as folder:
        module.run(config, folder, **arguments(module.run, config))


def _check_folder(folder: pathlib.Path) -> None:
    """Raises a UserError if the workdir or a parent of it is a file."""
    blocking = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if blocking and not blocking.is_dir():
        raise UserError('--workdir', f'{blocking}, which is a file', 'a folder for the run', 'give another path')


def _join_processes(name: str, verb: Verb) -> None:
    """Joins the other processes of the run, if there are several."""
    process_flags = read_process_flags()
    process_flags.check()
    if not process_flags.is_one_of_several():
        return
    if not verb.processes:
        fix = 'start one process; on a machine of a TPU slice, set TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu'
        distributed_verbs = ', '.join(other for other in verbs() if load_verb(other).VERB.processes)
        raise UserError(f'--config.run={name}', 'several processes', f'one, or one of {distributed_verbs}', fix)
    supervise()
    distributed.join(process_flags)


def _report_errors(function):
    """Wraps a function so that an exception that is not a bug becomes a line on stderr and an exit status."""

    def call(argv):
        try:
            return function(argv)
        except (UserError, StoppedError) as e:
            sys.stdout.flush()
            print(f'error: {e}' if isinstance(e, UserError) else str(e), file=sys.stderr)
            distributed.leave(e.exit_status)
        except KeyboardInterrupt:
            print('stopped; the same command continues from the complete files', file=sys.stderr)
            distributed.leave(130)
        except Exception as e:
            if distributed.is_lost(e):
                print(LostError(), file=sys.stderr, flush=True)
                distributed.leave(LostError.exit_status)
            workdir = WORKDIR.value if flags.FLAGS.is_parsed() else None
            user_error = disk.explain_os_error(e, workdir or '.') or memory.out_of_memory_error(e)
            if user_error is None and not distributed.is_multiprocess():
                raise
            sys.stdout.flush()
            if user_error is None:
                traceback.print_exc()  # Raising would wait for the other processes, which continue.
            else:
                print(f'error: {user_error}', file=sys.stderr)
            distributed.leave(1 if user_error is None else user_error.exit_status)

    return call


class _PlainFormatter(std_logging.Formatter):
    """Formats a record as `warning: …`, without absl's thread numbers and times."""

    def format(self, record: std_logging.LogRecord) -> str:
        return f'{record.levelname.lower()}: {super().format(record)}'


def _is_shown(record: std_logging.LogRecord) -> bool:
    """Returns False for errors that Orbax both logs and raises, and for debug messages of JAX below --verbosity=2."""
    if record.levelno <= std_logging.DEBUG and record.name != 'absl' and logging.get_verbosity() < 2:
        return False
    return '/orbax/checkpoint/' not in record.pathname and record.name != 'asyncio'


def _print_unraisable(fault: Any) -> None:
    """Prints an unraisable exception, unless it is from tensorstore's threads after a failed save, which has raised."""
    if str(fault.exc_value) != 'Event loop is closed':
        sys.__unraisablehook__(fault)


def _reduce_gc() -> None:
    """Runs the garbage collector less often.

    Tracing a step creates a million objects and hardly any garbage. Collecting them takes a seventh of the time until
    the first step.
    """
    gc.freeze()  # Imported objects are never garbage.
    gc.set_threshold(50_000, 20, 50)


def console() -> None:
    """Runs the program; the entry point of `python -m bertjax.main` and of the command `bertjax`."""
    _reduce_gc()
    guard_streams()
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.setStream(sys.stderr)  # The stream after `guard_streams`.
    logging.get_absl_handler().setFormatter(_PlainFormatter('%(message)s'))
    logging.get_absl_handler().addFilter(_is_shown)
    sys.unraisablehook = _print_unraisable
    app.run(_report_errors(main), flags_parser=_report_errors(parse_flags))


if __name__ == '__main__':
    console()
