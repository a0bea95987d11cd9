"""Pipelines of Apache Beam over work that lies in a folder which all workers see, on any runner.

A pipeline is given numbers alone. What each stands for is in the folder's plan, and what is found out is written there,
into whole files whose content depends on the text alone. So it does not matter how a runner bundles the numbers, who
gets them, or that it repeats some of them.
"""

import dataclasses
import json
import logging
import os
import pathlib
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import StandardOptions

from bertjax.corpus.beam_flags import KEY, is_dask, parse_flags, quiet
from bertjax.corpus.sources import TextPart
from bertjax.errors import UserError
from bertjax.files.atomic import private_to_machine, write_atomic
from bertjax.files.paths import is_remote

_PLAN, _REFUSED = 'plan.json', 'refused.json'


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

    def parts(self, number: int) -> list[TextPart]:
        """What unit `number` of the plan reads, by paths that hold here."""
        parts = [TextPart(*part) for part in self.plan['units'][number]]
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
            with private_to_machine():
                yield from self._work(self._job, element)
        except UserError as error:  # A runner would try again, and then tell of it in pages.
            write_atomic(refused, json.dumps(error.args))


def not_here(folder: pathlib.Path, lacking: int, of: int) -> UserError:
    """The error of a pipeline that has ended, and whose files are not all in the folder of its job."""
    found = f'{lacking:,} of {of:,} pieces of work that do not lie in {folder}'
    fix = 'mount one file system for all workers and this process; the same command continues'
    return UserError(KEY, found, 'a folder that all workers see', fix)


def run_pipeline(
    flags: str, folder: pathlib.Path, numbers: Iterable[int], fill: Callable[[beam.PCollection], object]
) -> None:
    """Runs a pipeline to its end.

    Args:
      flags: config.beam.
      folder: of its job.
      numbers: what it begins with; each is free to go to any worker.
      fill: adds the steps after that.

    Raises:
      UserError: what a step has found wrong, or a pipeline that failed.
    """
    numbers, refused = list(numbers), folder / _REFUSED
    runner, options = parse_flags(flags, len(numbers))
    refused.unlink(missing_ok=True)
    failed = ''
    pipeline = beam.Pipeline(runner=runner, options=options)
    try:
        with quiet(), pipeline:
            fill(pipeline | 'numbers' >> beam.Create(numbers) | 'spread' >> beam.Reshuffle())
    except Exception as error:  # Each runner has its own. What failed in a step, Beam has logged.
        logging.getLogger(__name__).debug('the pipeline failed', exc_info=True)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        failed = lines[-1] if lines else type(error).__name__
    result = getattr(pipeline, 'result', None)
    if is_dask(runner) and result:
        # DaskRunner takes a lost scheduler for the end of the pipeline, and leaves its client open.
        if any(future.cancelled() for future in result.futures):
            failed = 'the connection to the scheduler is lost'
        with quiet():
            result.client.close()
    if refused.exists():
        parts = json.loads(refused.read_text('utf-8'))
        refused.unlink()
        raise UserError(*parts)
    if failed:
        found = f'a failure of {options.view_as(StandardOptions).runner or "DirectRunner"}: {failed}'
        expected = f'a pipeline that ends, and workers that see {folder}'
        raise UserError(KEY, found, expected, 'see its log; the same command continues')
