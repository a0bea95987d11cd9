"""How several processes end when one fails, and how they fetch arrays; startup code replaces run=pretrain."""

import pathlib
import subprocess
import textwrap

import pytest
from running import Program, wait_for_exit

HEAD = """
import jax
from bertjax.errors import UserError
from bertjax.parallel import distributed
import bertjax.commands.pretrain as verb

distributed._LEAVING, distributed.HEARTBEAT = {leaving}, 5

def run(config, folder):
{body}

verb.run = run
"""


def ends(program: Program, folder: pathlib.Path, body: str, *, leaving: int = 600) -> list[subprocess.CompletedProcess]:
    """Runs two processes in which `body` replaces run=pretrain, and returns their results.

    Args:
      program: The program to start twice.
      folder: The folder for the startup code and the workdir.
      body: The statements of the verb.
      leaving: The seconds that a failing process waits for the other one.
    """
    code = HEAD.format(leaving=leaving, body=textwrap.indent(textwrap.dedent(body), '    '))
    patched = program.with_startup(folder / 'startup', code)
    return [wait_for_exit(process, status=None) for process in patched.start_together(2, f'--workdir={folder / "run"}')]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('error', 'status', 'words'),
    [
        ("UserError('a', 'b', 'c', 'd')", 2, 'error: a: found b, expected c; d'),
        ("IndexError('a fault of ours')", 1, 'IndexError: a fault of ours'),
        ('KeyboardInterrupt', 130, 'stopped; '),
        (
            "jax.errors.JaxRuntimeError('INTERNAL: NCCL operation ncclCommGetAsyncError failed: '"
            " 'remote process exited or there was a network error')",
            4,
            'another process of this run is lost',
        ),
    ],
)
def test_a_process_that_fails_alone_is_lost_to_the_others(
    program: Program, tmp_path: pathlib.Path, error: str, status: int, words: str
):
    """The other process waits at a barrier that the failing process never reaches."""
    body = f"""
        if not distributed.is_primary():
            raise {error}
        distributed.wait_for_all()
        print('went on')
    """
    first, second = ends(program, tmp_path, body, leaving=2)
    assert (first.returncode, second.returncode) == (4, status), first.stderr + second.stderr
    assert 'went on' not in first.stdout and 'another process of this run is lost' in first.stderr
    assert words in second.stderr


@pytest.mark.slow
def test_processes_with_the_same_error_end_together(program: Program, tmp_path: pathlib.Path):
    """Each process ends with its own status, also after a traceback, and none counts as lost."""
    for end in ends(program, tmp_path, "raise IndexError('a fault of ours')"):
        assert end.returncode == 1 and 'IndexError: a fault of ours' in end.stderr
        assert 'is lost' not in end.stderr


@pytest.mark.slow
def test_an_error_in_one_process_is_raised_in_all(program: Program, tmp_path: pathlib.Path):
    """All processes end at the same point with the status of the failing one, also after a system error."""
    body = """
        distributed.raise_together(None)
        print('nothing failed')
        distributed.raise_together(None if distributed.is_primary() else OSError(28, 'No space left on device', folder))
    """
    first, second = ends(program, tmp_path, body)
    assert (first.returncode, second.returncode) == (2, 2), first.stderr + second.stderr
    assert 'nothing failed' in first.stdout
    assert 'stopped: see the message of process 1 (status 2)' in first.stderr and 'a full disk' in second.stderr


def test_arrays_are_fetched_from_any_placement(program: Program, tmp_path: pathlib.Path):
    """Arrays may be sharded over the processes, replicated, on one local device, or on the host."""
    body = """
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh, x = Mesh(np.asarray(jax.devices()), ('data',)), np.arange(4.0)
        sharded, replicated = (jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes))) for axes in (['data'], []))
        local = jax.device_put(x, jax.local_devices()[0])
        fetched = distributed.fetch_to_all_hosts([x, sharded, replicated, local])
        assert all(isinstance(one, np.ndarray) and (one == x).all() for one in fetched)
    """
    for end in ends(program, tmp_path, body):
        assert end.returncode == 0, end.stderr
