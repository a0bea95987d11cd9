"""The entry point: `bertjax --config=RECIPE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]`.

`python -m bertjax` and `python -m bertjax.main` do the same without an installation; `bertjax.run` does so in Python.

Exit status:
  0           success
  1           a bug, or a workdir in a bucket that could not be published
  2           a mistake that the user can fix, reported in one line
  3           a stop because of non-finite steps
  4           a lost process of the run, or no progress for too long
  75          SIGTERM or Ctrl-C saved a checkpoint and stopped the run; the same command continues
  130 or 143  an immediate stop by a third Ctrl-C or SIGTERM, or by the first one outside of training
"""

import functools
import gc
import logging as std_logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

# During the imports Ctrl-C ends the process, because JAX may swallow a KeyboardInterrupt.
if __name__ == '__main__' and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from absl import app, flags, logging

from bertjax.errors import LostError, StoppedError, UserError, first_line, process_status

try:
    import jax  # noqa: F401
except (ImportError, RuntimeError) as error:  # jaxlib is missing, or does not match jax.
    reason = first_line(error)
    print('error:', UserError('jax', reason, 'jax and its own jaxlib', "pip install -U 'jax>=0.10.2'"), file=sys.stderr)
    raise SystemExit(process_status(UserError.exit_status)) from None

from bertjax.command_line import WORKDIR, parse_flags, read_process_flags, read_recipe
from bertjax.config.verb import Verb
from bertjax.files.paths import display_text
from bertjax.parallel import distributed
from bertjax.parallel.supervisor import supervise
from bertjax.run_verb import explain_error, run_verb
from bertjax.terminal import guard_streams, is_shown
from bertjax.usage import load_verb, verbs


def main(argv: Sequence[str]) -> None:
    """Runs the verb of the recipe, together with the other processes. `argv` is the result of `parse_flags`."""
    run_verb(read_recipe(), WORKDIR.value, functools.partial(_prepare, argv[1:]))


def _prepare(flags_of_words: Sequence[str], name: str, verb: Verb) -> None:
    """Joins the other processes, prints the long form of a training command, and sets the handlers of signals."""
    process_flags = read_process_flags()
    process_flags.check()
    if process_flags.is_one_of_several():
        if not verb.processes:
            fix = 'start one process; on a machine of a TPU slice, set TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu'
            others = ', '.join(other for other in verbs() if load_verb(other).VERB.processes)
            expected = f'one process, or one of the verbs {others}'
            raise UserError(f'--config.run={name}', 'several processes', expected, fix)
        supervise()
        distributed.join(process_flags)
    if flags_of_words and verb.trains and distributed.is_primary():
        print(shlex.join(['bertjax', *flags_of_words]))
    # A shell script starts background processes with SIGINT ignored, but the thread that publishes to a bucket stops
    # the main thread by SIGINT.
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # In a container, the kernel drops signals for which the first process has no handler. Long native calls, such as
    # a compilation, delay the handler.
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))


def _report_errors(function: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """Wraps a function so that an exception that is not a bug becomes a line on stderr and an exit status."""

    def call(argv: list[str]) -> Any:
        try:
            return function(argv)
        except (UserError, StoppedError) as e:
            sys.stdout.flush()
            print(display_text(f'error: {e}' if isinstance(e, UserError) else str(e)), file=sys.stderr)
            distributed.leave(e.exit_status)
        except KeyboardInterrupt:
            print('stopped; run the same command again to go on', file=sys.stderr)
            distributed.leave(130)
        except Exception as e:
            if distributed.is_lost(e):
                print(LostError(), file=sys.stderr, flush=True)
                distributed.leave(LostError.exit_status)
            workdir = WORKDIR.value if flags.FLAGS.is_parsed() else None
            user_error = explain_error(e, workdir)
            if user_error is None and not distributed.is_multiprocess():
                raise
            sys.stdout.flush()
            if user_error is None:
                traceback.print_exc()  # Raising would wait for the other processes, which continue.
                distributed.leave(1)
            print(display_text(f'error: {user_error}'), file=sys.stderr)
            distributed.leave(user_error.exit_status)

    return call


class _PlainFormatter(std_logging.Formatter):
    """Formats a record as `warning: …`, without absl's thread numbers and times and the mirrors of buckets."""

    def format(self, record: std_logging.LogRecord) -> str:
        return display_text(f'{record.levelname.lower()}: {super().format(record)}')


def _print_unraisable(fault: Any) -> None:
    """Prints an unraisable exception, except that of tensorstore after a failed save, which is reported anyway."""
    if str(fault.exc_value) != 'Event loop is closed':
        sys.__unraisablehook__(fault)


def console() -> None:
    """Runs the program. The command `bertjax`, `python -m bertjax` and `python -m bertjax.main` call this function."""
    # With the default thresholds, the garbage collector takes a seventh of the time until the first step.
    gc.freeze()  # Imported objects are never garbage.
    gc.set_threshold(50_000, 20, 50)
    guard_streams()
    logging.set_verbosity(logging.WARNING)
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.setStream(sys.stderr)  # `guard_streams` has replaced sys.stderr.
    logging.get_absl_handler().setFormatter(_PlainFormatter('%(message)s'))
    logging.get_absl_handler().addFilter(is_shown)
    sys.unraisablehook = _print_unraisable
    # After a failed save, which is reported anyway, Orbax leaves coroutines that were never awaited.
    warnings.filterwarnings('ignore', 'coroutine .* was never awaited', RuntimeWarning)
    app.run(_report_errors(main), flags_parser=_report_errors(parse_flags))


if __name__ == '__main__':
    console()
