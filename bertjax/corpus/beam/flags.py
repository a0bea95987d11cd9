"""Parses the flags of config.beam: the runner, the options of Beam, and the options of the runner."""

import contextlib
import io
import math
import os
import pathlib
import shlex

from absl import logging as absl_logging
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners import PipelineRunner, create_runner
from apache_beam.runners.portability.portable_runner import PortableRunner

from bertjax.errors import UserError, first_line
from bertjax.files.small_files import read_json_or_none

KEY = 'config.beam'
_EXPECTED, _FIX = "flags of Apache Beam's PipelineOptions", 'for example --runner=DirectRunner'
_DASK_MODULE = 'apache_beam.runners.dask.dask_runner'
_DASK_SECONDS = 10  # the timeout of a request to the scheduler; Dask's default is 30
# The maximum number of Dask partitions. Dask shuffles up to 32 ** 2 partitions in two rounds.
_DASK_PARTITIONS = 1024


def parse_flags(flags: str, elements: int = 1) -> tuple[PipelineRunner, PipelineOptions]:
    """Creates the runner and the options of a pipeline whose first collection has `elements` elements.

    Raises:
      UserError: The flags cannot be parsed, the runner cannot be imported, or a flag or an argument is unknown.
    """
    stderr = io.StringIO()
    try:
        arguments = shlex.split(flags)
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            options = PipelineOptions(arguments)
            # The runner is created before the options are listed, because Beam lists only options of imported modules.
            runner = _create_runner(options.view_as(StandardOptions).runner or 'DirectRunner')
            known = options.get_all_options()
            unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
    except SystemExit:  # raised by argparse after it prints an error or the help
        message = stderr.getvalue().rpartition('error: ')[2].strip()
        raise UserError(KEY, message or f'{flags!r}, which asks for help', _EXPECTED, _FIX) from None
    except ValueError as error:
        raise UserError(KEY, f'{flags!r} ({error})', _EXPECTED, _FIX) from None
    if isinstance(runner, PortableRunner):  # flags that only the job server knows are allowed
        unknown = set()
    pairs = zip(arguments, ['', *arguments], strict=False)
    loose = [argument for argument, previous in pairs if _is_loose(argument, previous)]
    unknown_flags = ' '.join([*(f'--{name}' for name in sorted(unknown)), *loose])
    if unknown_flags:
        raise UserError(KEY, f'{unknown_flags!r}, which Beam does not know', _EXPECTED, _FIX)
    if is_dask(runner):
        dask = _dask_options(options)
        if dask.timeout is None:
            dask.timeout = _DASK_SECONDS
        if not dask.npartitions and not dask.partition_size:
            # The default, up to 128 elements in a partition, is too large for elements that are shards of text.
            dask.partition_size = max(1, math.ceil(elements / _DASK_PARTITIONS))
    return runner, options


def is_dask(runner: PipelineRunner) -> bool:
    """Returns whether `runner` is Beam's DaskRunner, which needs the packages dask and distributed."""
    return type(runner).__name__ == 'DaskRunner'


def _dask_options(options: PipelineOptions) -> PipelineOptions:
    from apache_beam.runners.dask.dask_runner import DaskOptions

    return options.view_as(DaskOptions)


def _create_runner(name: str) -> PipelineRunner:
    """Creates a runner from a name that Beam knows, a fully qualified class name, or a short name of DaskRunner."""
    path = f'{_DASK_MODULE}.DaskRunner' if name.lower() in ('dask', 'daskrunner') else name
    try:
        runner = create_runner(path)
    except ValueError as error:
        raise ValueError(first_line(error)) from None
    except Exception as error:  # the import runs arbitrary code
        if path.startswith(_DASK_MODULE) and isinstance(error, ImportError | AttributeError):
            fix = "pip install 'bertjax[dask]', here and where the workers are (docs/data.md)"
            raise UserError(KEY, f'--runner={name} without Dask', 'the packages dask and distributed', fix) from None
        found = f'--runner={name} ({str(error) or type(error).__name__})'
        fix = 'install its package, or correct the name'
        raise UserError(KEY, found, 'a runner that can be imported', fix) from None
    if not isinstance(runner, PipelineRunner):
        raise UserError(KEY, f'--runner={name} ({type(runner).__name__})', 'a runner of Apache Beam', _FIX)
    return runner


def _is_loose(argument: str, previous: str) -> bool:
    """Returns whether an argument is neither a flag nor the value of the flag `previous`."""
    return not argument.startswith('-') and ('=' in previous or not previous.startswith('-'))


def check_scheduler(runner: PipelineRunner, options: PipelineOptions) -> None:
    """Checks that the Dask scheduler of a runner answers, if one is configured. Warns if it has no workers.

    Raises:
      UserError: The scheduler does not answer, or the scheduler file is missing or has no address.
    """
    if not is_dask(runner):
        return
    import dask.config
    import distributed

    dask_options = _dask_options(options)
    address, file = dask_options.address, dask_options.scheduler_file
    if not (address or file):
        address = dask.config.get('scheduler-address', None)  # a DaskJob sets DASK_SCHEDULER_ADDRESS in its pods
    if not (address or file):
        return  # the runner starts a scheduler and workers on this machine
    expected = f'a scheduler that answers within {dask_options.timeout} s'
    fix = 'start a scheduler (launch/dask.sh), or give --dask_connection_timeout=SECONDS'
    if file:  # a client would wait forever for a missing file
        address = read_json_or_none(pathlib.Path(file), lambda facts: facts['address'])
        if not isinstance(address, str):
            reason = 'no address in' if os.path.exists(file) else 'there is no file'
            raise UserError(KEY, f'no Dask scheduler: {reason} {file}', expected, fix)
    try:
        distributed.comm.get_address_host_port(address)  # a client does not handle an invalid address
        with distributed.Client(address, timeout=dask_options.timeout, set_as_default=False) as client:
            workers = client.scheduler_info()['workers']
    except (OSError, ValueError, TypeError, ImportError) as error:  # the address is wrong, or TLS or UCX is not set up
        raise UserError(KEY, f'no Dask scheduler at {address} ({first_line(error)})', expected, fix) from None
    if not workers:
        text = 'The Dask scheduler at %s has no workers yet. The work begins when a worker joins.'
        absl_logging.log_first_n(absl_logging.WARNING, text, 1, address)
