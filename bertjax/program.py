"""The program in Python: `bertjax.train` and `bertjax.run` do what the command line does.

    recipe = bertjax.recipe('glue:rte', learning_rate=3e-5, **{'optimizer.b2': 0.98})
    run = bertjax.train(recipe, 'out/rte')  # as --config=glue:rte --config.learning_rate=3e-5 … --workdir=out/rte
    run.metrics('dev'), run.summary, run.model  # the metrics, the results, and the model as from `bertjax.load`
    bertjax.run('predict', recipe, 'out/rte', split='test')  # as … --config.run=predict

The checks, the weights (bit for bit) and the files are the same as on the command line. Python can continue a run of
the command line, and vice versa. Errors are raised as exceptions; `bertjax.UserError` describes a mistake in one line.

Ctrl-C (SIGINT) or SIGTERM saves the training and raises `bertjax.PreemptedError`; the same call continues the training.
The third signal raises KeyboardInterrupt without saving. In a thread other than the main thread, signals do not affect
the training. A hang (config.hang_minutes) ends the whole process, as on the command line. Runs of several processes
need the command line. On a GPU, call `train` before JAX computes anything else, because bertjax sets flags that XLA
reads only once.
"""

import contextlib
import contextvars
import dataclasses
import functools
import os
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from bertjax.config.check import check_used
from bertjax.config.files import Recipe, find_recipe, load_recipe
from bertjax.config.plain import flatten
from bertjax.config.ranges import format_value
from bertjax.config.saved_config import make_recipe
from bertjax.config.verb import Verb
from bertjax.convert.hub import pull
from bertjax.errors import StoppedError, UserError
from bertjax.files.paths import is_remote
from bertjax.files.small_files import read_json_object
from bertjax.parallel import distributed
from bertjax.parallel.process_flags import ProcessFlags
from bertjax.remote.cache import copy_object
from bertjax.remote.object_store import RemoteFolder
from bertjax.remote.paths import user_path
from bertjax.run_verb import explain_error, run_verb
from bertjax.terminal import filter_log
from bertjax.training.caller import CALLER, Caller
from bertjax.training.health.goodput_clock import begin_recording
from bertjax.usage import load_verb, verbs
from bertjax.workdir.lock import TRIALS, trial_fields
from bertjax.writers.jsonl import read_rows

if TYPE_CHECKING:
    from bertjax.api import Bert

OnRow = Callable[[dict[str, Any]], object]
# The files with the results of a sweep, of a task or benchmark, and of a pre-training.
_SUMMARIES = ('sweep.json', 'results.json', 'summary.json')


def recipe(name: str | os.PathLike, **keys: Any) -> Recipe:
    """Returns a recipe, whose attribute `config` has the values of all keys.

    Args:
      name: The recipe as in --config: 'pretrain_tiny', 'glue:rte', 'my/recipe.py:argument'.
      **keys: The values of keys, such as learning_rate=3e-5, or **{'optimizer.b2': 0.98} for a key in a group. `data`
        of a task and `corpus` of a pre-training may be paths or rows; see `train`.

    Raises:
      UserError: The recipe or a key does not exist, or a value is outside its range.
    """
    if not isinstance(name, str | os.PathLike):
        raise UserError('recipe', format_value(name), 'the name or the path of a recipe', "for example 'pretrain_tiny'")
    name = os.fspath(name)
    config = load_recipe(find_recipe(name))
    config.lock()
    return make_recipe(name, config).with_keys(keys)


def run(
    verb: str,
    recipe: Recipe | str | os.PathLike,
    workdir: str | os.PathLike | None = None,
    *,
    on_row: OnRow | None = None,
    quiet: bool = False,
    **keys: Any,
) -> 'FinishedRun':
    """Runs a verb, like --config.run=VERB.

    Args:
      verb: The verb, such as 'evaluate', 'predict', 'plot' or 'report'; see --help.
      recipe: The recipe, or its name.
      workdir: The workdir; None if the verb needs none.
      on_row, quiet: See `train`.
      **keys: Values of keys, which replace the values in the recipe.

    Raises:
      UserError, PreemptedError, NonFiniteError: See `train`.
    """
    return _run(_as_recipe(recipe).with_keys({**keys, 'run': verb}), keys, workdir, on_row, quiet)


def train(
    recipe: Recipe | str | os.PathLike,
    workdir: str | os.PathLike,
    *,
    on_row: OnRow | None = None,
    quiet: bool = False,
    **keys: Any,
) -> 'FinishedRun':
    """Trains with a recipe for a pre-training, a task, a sweep or a distillation. The same call continues a training.

        rows = [{'text': 'a fine day', 'label': 'good'}, …]
        run = bertjax.train('classify', 'out/mine', init='out/tiny', data={'train': rows, 'dev': other_rows})
        run = bertjax.train('pretrain_tiny', 'out/tiny', corpus=['a document', 'another'])

    Rows may replace files. They are an iterable of dicts, a `datasets.Dataset` or a pandas DataFrame, with the columns
    that a file would have. They are written once to WORKDIR/rows as JSON lines, and then read like any file.
    `data` of a task may be the training rows, or {split: rows}. `corpus` of a pre-training may be rows, or an iterable
    of documents as text.

    Args:
      recipe: The recipe, or its name.
      workdir: The path of the workdir, or its address in a bucket.
      on_row: A function that is called with each new row of metrics.jsonl, a dict, after the row is written. In a sweep
        the row also has `trial`. If the function raises an error, it is not called again, and a warning is logged.
      quiet: Whether to print only warnings. If True, standard output of the whole process is discarded during the call,
        except in `on_row`.
      **keys: Values of keys, which replace the values in the recipe.

    Raises:
      UserError: A mistake in the recipe, the data or the workdir, in one line.
      PreemptedError: Ctrl-C or SIGTERM stopped the training, which was saved. The same call continues it.
      NonFiniteError: The loss, the gradient or the update was not finite in three steps in a row.
    """
    request = _as_recipe(recipe).with_keys(keys)
    if request.config.run in verbs() and not load_verb(request.config.run).VERB.trains:
        found, fix = f'{request.config.run!r}, which trains nothing', f"call bertjax.run('{request.config.run}', …)"
        raise UserError('config.run', found, 'a verb that trains', fix)
    return _run(request, keys, workdir, on_row, quiet)


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A workdir after `train` or `run`.

    Attributes:
      workdir: The path of the workdir, or its address in a bucket; None for a verb without a workdir.
    """

    recipe: Recipe
    workdir: pathlib.Path | str | None

    @functools.cached_property
    def model(self) -> 'Bert':
        """The trained model, which is loaded on first use; see `bertjax.load`."""
        from bertjax.api import load

        return load(self._workdir)

    def metrics(self, split: str | None = None) -> list[dict[str, Any]]:
        """Returns the rows of metrics.jsonl for one split, such as 'train', 'heldout' or 'dev'; None means all splits.

        The rows of a sweep are the rows of its trials, with a field `trial`.
        """
        paths = [self._file('metrics.jsonl')]
        if is_remote(self._workdir):
            names = sorted(RemoteFolder(f'{self._workdir}/{TRIALS}', 'workdir').find())
            paths += [self._file(f'{TRIALS}/{name}') for name in names if re.fullmatch('[^/]+/metrics.jsonl', name)]
        else:
            paths += sorted(pathlib.Path(self._workdir).glob(f'{TRIALS}/*/metrics.jsonl'))
        rows = [{**row, **trial_fields(path.parent)} for path in paths for row in read_rows(path)]
        return [row for row in rows if split in (None, row['split'])]

    @property
    def summary(self) -> dict[str, Any]:
        """The results of the run, from its sweep.json, results.json or summary.json; {} if it has no such file."""
        path = next((path for name in _SUMMARIES if (path := self._file(name)).exists()), None)
        return read_json_object(path, 'train again, or restore the file') if path else {}

    @property
    def _workdir(self) -> str:
        if self.workdir is None:
            raise UserError('workdir', 'nothing', 'a workdir', 'give a workdir in the call')
        return os.fspath(self.workdir).rstrip('/')

    def _file(self, name: str) -> pathlib.Path:
        return pathlib.Path(user_path(f'{self._workdir}/{name}', 'workdir'))


def _as_recipe(value: Recipe | str | os.PathLike) -> Recipe:
    if not isinstance(value, Recipe):
        return recipe(value)
    # Keys that the caller has set in `config` directly also count as set by the user.
    original = flatten(load_recipe(find_recipe(value.name)))
    changed = {key for key, x in flatten(value.config).items() if original.get(key) != x}
    return dataclasses.replace(value, flag_keys=frozenset((*value.flag_keys, *changed)))


def _run(
    request: Recipe, keys: Collection[str], workdir: str | os.PathLike | None, on_row: OnRow | None, quiet: bool
) -> FinishedRun:
    check_used(request.config, keys)
    if workdir is not None and not isinstance(workdir, str | os.PathLike):
        raise UserError('workdir', format_value(workdir), 'a path', "for example 'out/tiny'")
    if on_row is not None and not callable(on_row):
        raise UserError('on_row', format_value(on_row), 'a function of a row', 'for example on_row=print')
    workdir = None if workdir is None else os.fspath(workdir)
    begin_recording()
    # Models on the hub and objects in buckets may have changed since the last call.
    pull.cache_clear()
    copy_object.cache_clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(filter_log())
        if quiet:
            stack.enter_context(_QuietOutput())
            on_row = on_row and _with_output(on_row)
        stack.callback(CALLER.reset, CALLER.set(Caller('call', ends_process=False, on_row=on_row)))
        try:
            run_verb(request, workdir, _check_one_process)
        except (UserError, StoppedError):
            raise
        except Exception as error:
            if (explained := explain_error(error, workdir)) is None:
                raise
            raise explained from error
    if workdir is None or is_remote(workdir):
        return FinishedRun(request, workdir)
    return FinishedRun(request, pathlib.Path(workdir).expanduser().absolute())


# Whether the current thread is in the `on_row` of a quiet call. The output of `on_row` is not discarded.
_IN_ON_ROW: contextvars.ContextVar[bool] = contextvars.ContextVar('in_on_row', default=False)


class _QuietOutput:
    """A context that discards standard output, except in `on_row`. Threads may enter and leave in any order."""

    _lock, _calls, _stdout = threading.Lock(), 0, sys.stdout

    def __enter__(self) -> None:
        shared = _QuietOutput
        with shared._lock:
            if not shared._calls:
                shared._stdout, sys.stdout = sys.stdout, _QuietStream(sys.stdout)
            shared._calls += 1
        self._token = _IN_ON_ROW.set(False)

    def __exit__(self, *error: object) -> None:
        shared = _QuietOutput
        _IN_ON_ROW.reset(self._token)
        with shared._lock:
            shared._calls -= 1
            if not shared._calls:
                sys.stdout = shared._stdout


class _QuietStream:
    """A stream that writes to `stream` in `on_row`, and discards all other text."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text) if _IN_ON_ROW.get() else len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False  # else a run would draw progress bars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _with_output(on_row: OnRow) -> OnRow:
    """Returns a function that calls `on_row` without discarding its output."""

    def call(row: dict[str, Any]) -> None:
        token = _IN_ON_ROW.set(True)
        try:
            on_row(row)
        finally:
            _IN_ON_ROW.reset(token)

    return call


def _check_one_process(name: str, verb: Verb) -> None:
    del verb
    if ProcessFlags().is_one_of_several() or distributed.is_multiprocess():
        fix = f'start {name} from the command line in each process: docs/scaling.md'
        raise UserError('this process', 'one of several processes', 'a single process in Python', fix)
