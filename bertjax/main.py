"""The one entry point: `bertjax --config=RECIPE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]`.

Also as `python -m bertjax`, and as `python -m bertjax.main`, which needs no installation.

Reads the flags, loads the recipe and hands both to the verb `config.run`, a module of `bertjax/commands/`.

Exit status: 0 done; 1 a fault of ours, or a workdir in a bucket that could not be published; 2 a mistake that the user
can fix, said in one line; 3 stopped on non-finite steps; 4 another process of the run is lost, or nothing moved any
more; 75 saved after SIGTERM or Ctrl-C, start again to continue; 130 or 143 ended at once by a third Ctrl-C or SIGTERM,
or by one that came while nothing was being trained.
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main` has imported all: JAX swallows KeyboardInterrupt in gc

from absl import app, flags, logging

from bertjax.errors import LostError, StoppedError, UserError

try:
    import jax  # noqa: F401
except (ImportError, RuntimeError) as error:  # jax without its jaxlib, or with another one
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    print('error:', UserError('jax', reason, 'jax and its own jaxlib', "pip install -U 'jax>=0.10.2'"), file=sys.stderr)
    raise SystemExit(UserError.exit_status) from None

from bertjax import memory
from bertjax.command_line import (
    CONFIG,
    WORKDIR,
    arguments,
    find_verb,
    membership,
    no_recipe,
    parse_flags,
    usual_argument,
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
    """Checks the two flags and calls the verb."""
    del argv
    config, workdir = CONFIG.value, WORKDIR.value
    if config is None:
        raise no_recipe()
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
    _join_others(config.run, verb)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if verb.trains and (note := usual_argument(config)):
        print(note)
    if in_bucket:
        from bertjax.workdir.mirror import mirrored_workdir  # it knows all formats of exports, and is seldom needed
    with mirrored_workdir(workdir, verb.bucket) if in_bucket else contextlib.nullcontext(workdir) as folder:
        module.run(config, folder, **arguments(module.run, config))


def _check_folder(folder: pathlib.Path) -> None:
    """Raises UserError where a file is in the way of the workdir."""
    blocking = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if blocking and not blocking.is_dir():
        raise UserError('--workdir', f'{blocking}, which is a file', 'a folder for the run', 'give another path')


def _join_others(name: str, verb: Verb) -> None:
    """Meets the other processes of the run, where this is one of several."""
    own = membership()
    own.check()
    if not own.is_one_of_several():
        return
    if not verb.processes:
        fix = 'start it once; on one machine of a TPU slice with TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu'
        together = ', '.join(other for other in verbs() if load_verb(other).VERB.processes)
        raise UserError(f'--config.run={name}', 'several processes', f'one, or one of {together}', fix)
    supervise()
    distributed.join(own)


def _guarded(function):
    """Turns the exceptions that are no fault of ours into one line and an exit status."""

    def call(argv):
        try:
            return function(argv)
        except (UserError, StoppedError) as e:
            sys.stdout.flush()
            print(f'error: {e}' if isinstance(e, UserError) else str(e), file=sys.stderr)
            distributed.leave(e.exit_status)
        except KeyboardInterrupt:
            print('stopped; the same command continues with what is whole', file=sys.stderr)
            distributed.leave(130)
        except Exception as e:
            if distributed.is_lost(e):
                print(LostError(), file=sys.stderr, flush=True)
                distributed.leave(LostError.exit_status)
            workdir = WORKDIR.value if flags.FLAGS.is_parsed() else None
            refused = disk.refused(e, workdir or '.') or memory.out_of_memory_error(e)
            if refused is None and not distributed.is_multiprocess():
                raise
            sys.stdout.flush()
            if refused is None:
                traceback.print_exc()  # at its end Python would wait for the others, who go on
            else:
                print(f'error: {refused}', file=sys.stderr)
            distributed.leave(1 if refused is None else refused.exit_status)

    return call


class _Plain(std_logging.Formatter):
    """`warning: …` in place of absl's thread numbers and times."""

    def format(self, record: std_logging.LogRecord) -> str:
        return f'{record.levelname.lower()}: {super().format(record)}'


def _is_shown(record: std_logging.LogRecord) -> bool:
    """False for what Orbax raises and logs as well, with tracebacks of its threads, and for the debugging of JAX, which
    --verbosity=2 shows."""
    if record.levelno <= std_logging.DEBUG and record.name != 'absl' and logging.get_verbosity() < 2:
        return False
    return '/orbax/checkpoint/' not in record.pathname and record.name != 'asyncio'


def _print_unraisable(fault: Any) -> None:
    """As Python does, but for what tensorstore's threads say after a save that failed: that was raised already."""
    if str(fault.exc_value) != 'Event loop is closed':
        sys.__unraisablehook__(fault)


def _collect_seldom() -> None:
    """Tracing a step makes a million objects of which hardly one is garbage; Python would look at all of them again and
    again, for a seventh of the time until the first step."""
    gc.freeze()  # what was imported stays
    gc.set_threshold(50_000, 20, 50)


def console() -> None:
    """Entry of `python -m bertjax.main` and of the command `bertjax`."""
    _collect_seldom()
    guard_streams()
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.setStream(sys.stderr)  # not the one that was replaced
    logging.get_absl_handler().setFormatter(_Plain('%(message)s'))
    logging.get_absl_handler().addFilter(_is_shown)
    sys.unraisablehook = _print_unraisable
    app.run(_guarded(main), flags_parser=_guarded(parse_flags))


if __name__ == '__main__':
    console()
