"""Runs pipelines of Apache Beam on any runner. All workers share a folder with the plan of the work.

A pipeline starts with numbers, and the plan maps each number to a unit of work. Units may run in any order and more
than once, because workers write files atomically, and the content of a file depends only on the plan and the text.
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

from bertjax.corpus.beam.flags import KEY, is_dask, parse_flags
from bertjax.corpus.sources import TextPart
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import is_remote

_PLAN, _ERROR = 'plan.json', 'refused.json'


class Job:
    """The folder of a job, as a worker reads it. Relative paths of text files start from `root`.

    Attributes:
      plan: The content of plan.json.

    Raises:
      RuntimeError: This worker cannot read the folder.
    """

    def __init__(self, folder: str, root: str):
        self.folder, self._root = pathlib.Path(folder), root
        try:
            self.plan = json.loads((self.folder / _PLAN).read_text('utf-8'))
        except OSError as error:
            raise RuntimeError(f'the worker on {socket.gethostname()} cannot read {error.filename}: {error}') from error

    def parts(self, number: int) -> list[TextPart]:
        """Returns the parts that unit `number` of the plan reads. Paths of local files are absolute."""

        def absolute(part: TextPart) -> TextPart:
            is_local = part.kind == 'file' and not is_remote(part.path)
            return dataclasses.replace(part, path=os.path.join(self._root, part.path)) if is_local else part

        return [absolute(TextPart(*part)) for part in self.plan['units'][number]]


class Step(beam.DoFn):
    """A step that calls `work(job, element)` and passes the results to the next step.

    If `work`, a module-level function, has raised a UserError in any worker, the step skips all further elements.
    """

    def __init__(self, work: Callable[[Any, Any], Iterable], job: Callable[[], Job]):
        self._work, self._make_job = work, job

    def setup(self) -> None:
        self._job = self._make_job()

    def process(self, element: Any) -> Iterator:
        error_file = self._job.folder / _ERROR
        if error_file.exists():
            return
        try:
            yield from self._work(self._job, element)
        except UserError as error:  # not raised, because the runner would retry and then print a long stack trace
            write_atomic(error_file, json.dumps(error.args))


def missing_results_error(folder: pathlib.Path, missing: int, total: int) -> UserError:
    """Returns the error for a pipeline that ended although some results are missing in the folder of the job."""
    found = f'{missing:,} of {total:,} results missing in {folder}'
    fix = 'mount one file system for all workers and this process, then repeat the command'
    return UserError(KEY, found, 'a folder that all workers share', fix)


def run_pipeline(
    flags: str, folder: pathlib.Path, numbers: Iterable[int], fill: Callable[[beam.PCollection], object]
) -> None:
    """Runs a pipeline to its end. `fill` applies the steps to the collection of `numbers`, the units of work.

    Raises:
      UserError: The flags are invalid, a step raised a UserError, or the pipeline failed.
    """
    numbers, error_file = list(numbers), folder / _ERROR
    runner, options = parse_flags(flags, len(numbers))
    error_file.unlink(missing_ok=True)
    failed = ''
    pipeline = beam.Pipeline(runner=runner, options=options)
    try:
        with pipeline:
            fill(pipeline | 'numbers' >> beam.Create(numbers) | 'spread' >> beam.Reshuffle())
    except Exception as error:  # the exceptions differ between runners; Beam has logged the errors of steps
        logging.getLogger(__name__).debug('the pipeline failed', exc_info=True)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        failed = lines[-1] if lines else type(error).__name__
    result = getattr(pipeline, 'result', None)
    if is_dask(runner) and result:
        # DaskRunner treats a lost scheduler as the end of the pipeline, and does not close its client.
        if any(future.cancelled() for future in result.futures):
            failed = 'the connection to the scheduler is lost'
        result.client.close()
    if error_file.exists():
        arguments = json.loads(error_file.read_text('utf-8'))
        error_file.unlink()
        raise UserError(*arguments)
    if failed:
        found = f'a failure of {options.view_as(StandardOptions).runner or "DirectRunner"}: {failed}'
        expected = f'a pipeline that succeeds, and workers that share {folder}'
        raise UserError(KEY, found, expected, 'see the log of the runner, then repeat the command')
