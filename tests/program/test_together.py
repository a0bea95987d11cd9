"""What several processes do together, in the place of a verb: how they end when one fails, what they fetch."""

import dataclasses
import os
import pathlib
import subprocess
import textwrap

import pytest
from running import Program, finished

HEAD = """
import jax
from bertjax.errors import UserError
from bertjax.main import console
from bertjax.parallel import distributed
import bertjax.commands.pretrain as verb

distributed._LEAVING, distributed.HEARTBEAT = {leaving}, 5

def run(config, folder, **told):
{body}

verb.run = run
console()
"""


def ends(program: Program, folder: pathlib.Path, body: str, *, leaving: int = 600) -> list[subprocess.CompletedProcess]:
    """Both processes at their ends, in which `body` stands for run=pretrain.

    Args:
      program: that is started twice.
      folder: for the code and the workdir.
      body: the statements of the verb.
      leaving: seconds that one which fails waits for the other; shorter than a test, or longer.
    """
    code = HEAD.format(leaving=leaving, body=textwrap.indent(textwrap.dedent(body), '    '))
    (folder / 'verb.py').write_text(code)
    path = os.pathsep.join([str(program.repository), str(folder), program.environment['PYTHONPATH']])
    own = dataclasses.replace(program, environment=program.environment | {'PYTHONPATH': path}, module='verb')
    return [finished(process, status=None) for process in own.start_together(2, f'--workdir={folder / "run"}')]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('error', 'status', 'words'),
    [
        ("UserError('a', 'b', 'c', 'd')", 2, 'error: a: found b, expected c; d'),
        ("IndexError('a fault of ours')", 1, 'IndexError: a fault of ours'),
        ('KeyboardInterrupt', 130, 'stopped; '),
    ],
)
def test_one_that_fails_alone_is_lost_to_the_others(
    program: Program, tmp_path: pathlib.Path, error: str, status: int, words: str
):
    """Also to those who wait for it: it has not come to where they are."""
    body = f"""
        if not distributed.is_primary():
            raise {error}
        distributed.wait_for_all(600)
        print('went on')
    """
    first, second = ends(program, tmp_path, body, leaving=2)
    assert (first.returncode, second.returncode) == (4, status), first.stderr + second.stderr
    assert 'went on' not in first.stdout and 'another process of this run is lost' in first.stderr
    assert words in second.stderr


@pytest.mark.slow
def test_those_that_fail_alike_end_together(program: Program, tmp_path: pathlib.Path):
    """With the status of each, also after a traceback: none of them is lost."""
    for end in ends(program, tmp_path, "raise IndexError('a fault of ours')"):
        assert end.returncode == 1 and 'IndexError: a fault of ours' in end.stderr
        assert 'is lost' not in end.stderr


@pytest.mark.slow
def test_what_failed_in_one_is_raised_in_all(program: Program, tmp_path: pathlib.Path):
    """At the same point, with the status of the one that says why; also where the system was the cause."""
    body = """
        distributed.raise_together(None)
        print('nothing failed')
        distributed.raise_together(None if distributed.is_primary() else OSError(28, 'No space left on device', folder))
    """
    first, second = ends(program, tmp_path, body)
    assert (first.returncode, second.returncode) == (2, 2), first.stderr + second.stderr
    assert 'nothing failed' in first.stdout
    assert 'stopped: see the message of process 1 (status 2)' in first.stderr and 'a full disk' in second.stderr


def test_arrays_are_fetched_wherever_they_lie(program: Program, tmp_path: pathlib.Path):
    """Split between the processes, the same in both, on a device of one alone, or on the host already."""
    body = """
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh, x = Mesh(np.asarray(jax.devices()), ('data',)), np.arange(4.0)
        split, whole = (jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes))) for axes in (['data'], []))
        own = jax.device_put(x, jax.local_devices()[0])
        fetched = distributed.fetch_to_all_hosts([x, split, whole, own])
        assert all(isinstance(one, np.ndarray) and (one == x).all() for one in fetched)
    """
    for end in ends(program, tmp_path, body):
        assert end.returncode == 0, end.stderr
