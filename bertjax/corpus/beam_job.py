"""Pipelines of Apache Beam over work that lies in a folder which all workers see, on any runner.

A pipeline is given numbers alone. What each stands for is in the folder's plan, and what is found out is written there,
into whole files whose content depends on the text alone. So it does not matter how a runner bundles the numbers, who
gets them, or that it repeats some of them.
"""

import contextlib
import dataclasses
import io
import json
import logging
import os
import pathlib
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners import create_runner
from apache_beam.runners.portability.portable_runner import PortableRunner

from bertjax.corpus.sources import Part
from bertjax.errors import UserError
from bertjax.files.atomic import apart_from_other_machines, write_atomic
from bertjax.files.paths import is_remote

_PLAN, _REFUSED = 'plan.json', 'refused.json'
_KEY = 'config.beam'


class Job:
    """The folder of a job, as a worker sees it.

    Args:
      folder: an absolute path.
      root: the directory in which relative paths of the text begin.

    Attributes:
      folder: see above.
      plan: the content of its plan.json.

    Raises:
      RuntimeError: this worker does not see the folder.
    """

    def __init__(self, folder: str, root: str):
        self.folder, self._root = pathlib.Path(folder), root
        try:
            self.plan = json.loads((self.folder / _PLAN).read_text('utf-8'))
        except OSError as error:
            raise RuntimeError(f'the worker on {socket.gethostname()} cannot read {error.filename}: {error}') from error

    def parts(self, number: int) -> list[Part]:
        """What unit `number` of the plan reads, by paths that hold here."""
        parts = [Part(*part) for part in self.plan['units'][number]]
        local = [part.kind == 'file' and not is_remote(part.path) for part in parts]
        return [
            dataclasses.replace(part, path=os.path.join(self._root, part.path)) if here else part
            for part, here in zip(parts, local, strict=True)
        ]


class Step(beam.DoFn):
    """`work(job, element)`, which gives what the next step gets. After a user's mistake nothing more is done.

    Args:
      work: a function of a module, or a `functools.partial` of one.
      job: makes the job, once for each copy of the step.
    """

    def __init__(self, work: Callable[[Any, Any], Iterable], job: Callable[[], Job]):
        self._work, self._make = work, job

    def setup(self) -> None:
        """Opens the folder."""
        self._job = self._make()

    def process(self, element: Any) -> Iterator:
        """Works on one element."""
        refused = self._job.folder / _REFUSED
        if refused.exists():
            return
        try:
            with apart_from_other_machines():
                yield from self._work(self._job, element)
        except UserError as error:  # A runner would try again, and then tell of it in pages.
            write_atomic(refused, json.dumps(error.args))


def not_here(folder: pathlib.Path, lacking: int, of: int) -> UserError:
    """The error of a pipeline that has ended, and whose files are not all in the folder of its job."""
    found = f'{lacking:,} of {of:,} pieces of work that do not lie in {folder}'
    mend = 'mount one file system for all workers and this process; the same command continues'
    return UserError(_KEY, found, 'a folder that all workers see', mend)


def each(numbers: Iterable[int]) -> beam.PTransform:
    """The numbers, free to go to any worker."""
    return 'numbers' >> beam.Create(list(numbers)) | 'spread' >> beam.Reshuffle()


def check_flags(flags: str) -> None:
    """Refuses flags that no pipeline could run with, as far as that is known before it starts.

    Raises:
      UserError: what cannot be parsed; a flag, value or runner that Beam does not know.
    """
    _options(flags)


def _options(flags: str) -> PipelineOptions:
    expected, mend = "flags of Apache Beam's PipelineOptions", 'for example --runner=DirectRunner'
    said = io.StringIO()
    try:
        arguments = shlex.split(flags)
        options = PipelineOptions(arguments)
        with contextlib.redirect_stderr(said), _quiet():
            known = options.get_all_options()
            unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
        loose = [one for one, before in zip(arguments, ['', *arguments], strict=False) if _is_loose(one, before)]
        runner = create_runner(known['runner'] or 'DirectRunner')
    except SystemExit:  # of argparse
        raise UserError(
            _KEY, said.getvalue().strip().splitlines()[-1].partition('error: ')[2], expected, mend
        ) from None
    except ValueError as error:
        raise UserError(_KEY, f'{flags!r} ({str(error).splitlines()[0]})', expected, mend) from None
    if isinstance(runner, PortableRunner):  # Its job server has flags of its own.
        unknown = []
    found = ' '.join([*(f'--{name}' for name in sorted(unknown)), *loose])
    if found:
        raise UserError(_KEY, f'{found!r}, which Beam does not know', expected, mend)
    return options


def _is_loose(argument: str, before: str) -> bool:
    """Whether it is neither a flag nor the value of the one before."""
    return not argument.startswith('-') and ('=' in before or not before.startswith('-'))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Beam says much at the level of warnings that concerns nobody."""
    logger = logging.getLogger('apache_beam')
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def run_pipeline(flags: str, folder: pathlib.Path, fill: Callable[[beam.Pipeline], object]) -> None:
    """Runs a pipeline to its end.

    Args:
      flags: config.beam.
      folder: of its job.
      fill: adds its steps.

    Raises:
      UserError: what a step has found wrong, or a pipeline that failed.
    """
    options, refused = _options(flags), folder / _REFUSED
    refused.unlink(missing_ok=True)
    failed = ''
    try:
        with _quiet(), beam.Pipeline(options=options) as pipeline:
            fill(pipeline)
    except Exception as error:  # Each runner has its own. What failed in a step, Beam has logged.
        logging.getLogger(__name__).debug('the pipeline failed', exc_info=True)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        failed = lines[-1] if lines else type(error).__name__
    if refused.exists():
        parts = json.loads(refused.read_text('utf-8'))
        refused.unlink()
        raise UserError(*parts)
    if failed:
        runner = options.view_as(StandardOptions).runner or 'DirectRunner'
        expected = f'a pipeline that ends, and workers that see {folder}'
        raise UserError(_KEY, f'a failure of {runner}: {failed}', expected, 'see its log; the same command continues')
