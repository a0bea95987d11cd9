"""The flags in config.beam: the runner that they name, and the options that Beam and this runner read from them."""

import contextlib
import io
import logging
import math
import os
import pathlib
import shlex
import sys
from collections.abc import Iterator

from absl import logging as absl_logging
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners import PipelineRunner, create_runner
from apache_beam.runners.portability.portable_runner import PortableRunner

from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none

KEY = 'config.beam'
_EXPECTED, _FIX = "flags of Apache Beam's PipelineOptions", 'for example --runner=DirectRunner'
_DASK_MODULE = 'apache_beam.runners.dask.dask_runner'
_DASK_SECONDS = 10  # until a scheduler has answered; Dask itself waits for 30
# Above this number of Dask's partitions one holds several elements. A shuffle of up to 32 ** 2 takes two rounds.
_DASK_PARTITIONS = 1024


def parse_flags(flags: str, elements: int = 1) -> tuple[PipelineRunner, PipelineOptions]:
    """Creates the runner and the options of a pipeline.

    Args:
      flags: config.beam.
      elements: number of elements at the beginning of the pipeline.

    Raises:
      UserError: what cannot be parsed; a runner that cannot be imported; a flag or value that neither Beam nor the
        runner knows.
    """
    stderr = io.StringIO()
    try:
        arguments = shlex.split(flags)
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()), quiet():
            options = PipelineOptions(arguments)
            # First, as Beam knows the options of all modules that are imported.
            runner = _create_runner(options.view_as(StandardOptions).runner or 'DirectRunner')
            known = options.get_all_options()
            unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
    except SystemExit:  # of argparse, which prints help and says nothing of a mistake where that is asked for
        message = stderr.getvalue().rpartition('error: ')[2].strip()
        raise UserError(KEY, message or f'{flags!r}, which asks for help', _EXPECTED, _FIX) from None
    except ValueError as error:
        raise UserError(KEY, f'{flags!r} ({error})', _EXPECTED, _FIX) from None
    if isinstance(runner, PortableRunner):  # Its job server has flags of its own.
        unknown = set()
    loose = [one for one, before in zip(arguments, ['', *arguments], strict=False) if _is_loose(one, before)]
    found = ' '.join([*(f'--{name}' for name in sorted(unknown)), *loose])
    if found:
        raise UserError(KEY, f'{found!r}, which Beam does not know', _EXPECTED, _FIX)
    if is_dask(runner):
        _set_dask_defaults(options, elements)
    return runner, options


def check_flags(flags: str) -> None:
    """Refuses flags that no pipeline could run with, as far as that is known before it starts.

    Raises:
      UserError: see `parse_flags`; a Dask scheduler that does not answer.
    """
    runner, options = parse_flags(flags)
    if is_dask(runner):
        _check_scheduler(options)


def is_dask(runner: PipelineRunner) -> bool:
    """Whether it is Beam's DaskRunner, which needs the packages dask and distributed."""
    module = sys.modules.get(_DASK_MODULE)
    return module is not None and isinstance(runner, module.DaskRunner)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the warnings of Beam, which concern nobody here, and what a Dask client logs of a lost scheduler."""
    levels = {'apache_beam': logging.ERROR, 'distributed.client': logging.CRITICAL}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _create_runner(name: str) -> PipelineRunner:
    """The runner of a name that Beam knows, of a fully qualified one, or DaskRunner, whose short name Beam lacks."""
    path = f'{_DASK_MODULE}.DaskRunner' if name.lower() in ('dask', 'daskrunner') else name
    try:
        runner = create_runner(path)
    except ValueError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except Exception as error:  # A module of anybody is imported.
        if path.startswith(_DASK_MODULE) and isinstance(error, ImportError | AttributeError):
            fix = "pip install 'bertjax[dask]', here and where the workers are (docs/data.md)"
            raise UserError(KEY, f'--runner={name} without Dask', 'the packages dask and distributed', fix) from None
        found = f'--runner={name} ({str(error) or type(error).__name__})'
        fix = 'install its package, or correct the name'
        raise UserError(KEY, found, 'a runner that can be imported', fix) from None
    if not isinstance(runner, PipelineRunner):
        raise UserError(KEY, f'--runner={name} ({type(runner).__name__})', 'a runner of Apache Beam', _FIX)
    return runner


def _is_loose(argument: str, before: str) -> bool:
    """Whether it is neither a flag nor the value of the one before."""
    return not argument.startswith('-') and ('=' in before or not before.startswith('-'))


def _set_dask_defaults(options: PipelineOptions, elements: int) -> None:
    """Sets what config.beam leaves open.

    By itself DaskRunner gives up to 128 elements to one worker, each of which stands for a shard of the text.
    """
    dask = options.view_as(sys.modules[_DASK_MODULE].DaskOptions)
    if dask.timeout is None:
        dask.timeout = _DASK_SECONDS
    if not dask.npartitions and not dask.partition_size:
        dask.partition_size = max(1, math.ceil(elements / _DASK_PARTITIONS))


def _check_scheduler(options: PipelineOptions) -> None:
    """Asks the Dask scheduler for its workers, where one is named.

    Raises:
      UserError: it does not answer, or its file is not there.
    """
    import dask.config
    import distributed

    given = options.view_as(sys.modules[_DASK_MODULE].DaskOptions)
    address, file = given.address, given.scheduler_file
    if not (address or file):
        address = dask.config.get('scheduler-address', None)  # DASK_SCHEDULER_ADDRESS, in a pod of a DaskJob
    if not (address or file):
        return  # The runner starts a scheduler and workers on this machine.
    expected, fix = (
        f'one that answers within {given.timeout} s',
        'start one (launch/dask.sh), or give --dask_connection_timeout=SECONDS',
    )
    if file:  # A client would wait without end for a file that is not there.
        address = read_json_or_none(pathlib.Path(file), lambda facts: facts['address'])
        if not isinstance(address, str):
            lacking = 'no address in' if os.path.exists(file) else 'there is no file'
            raise UserError(KEY, f'no Dask scheduler: {lacking} {file}', expected, fix)
    try:
        distributed.comm.get_address_host_port(address)  # A client of an address that cannot be one ends badly.
        with distributed.Client(address, timeout=given.timeout, set_as_default=False) as client:
            workers = client.scheduler_info()['workers']
    except (OSError, ValueError, TypeError, ImportError) as error:  # No such address; TLS, UCX that is not set up.
        found = f'no Dask scheduler at {address} ({str(error).splitlines()[0]})'
        raise UserError(KEY, found, expected, fix) from None
    if not workers:
        text = 'The Dask scheduler at %s has no workers yet: the work begins when one comes.'
        absl_logging.log_first_n(absl_logging.WARNING, text, 1, address)
