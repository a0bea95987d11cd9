"""How one of several processes ends when it fails, and what the others make of it."""

import dataclasses
import os
import pathlib
import subprocess
import textwrap

import pytest
from running import Program, finished

# What a verb may do in the place of run=pretrain, in two processes that wait less long than others.
VERB = """
    from bertjax.errors import UserError
    from bertjax.main import console
    from bertjax.parallel import distributed
    import bertjax.runs.pretrain as verb

    distributed._LEAVING, distributed.HEARTBEAT = {leaving}, 5

    def run(config, folder, **told):
        if distributed.is_first() and {alone}:
            distributed.wait_for_all(600)
            print('went on')
        else:
            raise {error}

    verb.run = run
    console()
"""


def ends(
    program: Program, folder: pathlib.Path, *, error: str, alone: bool, leaving: int
) -> list[subprocess.CompletedProcess]:
    """Both processes at their ends, of which the second raises `error`; the first waits for it, or raises it too."""
    folder.mkdir()
    code = VERB.format(error=error, alone=alone, leaving=leaving)
    (folder / 'verb.py').write_text(textwrap.dedent(code))
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
    first, second = ends(program, tmp_path / 'alone', error=error, alone=True, leaving=2)
    assert (first.returncode, second.returncode) == (4, status), first.stderr + second.stderr
    assert 'went on' not in first.stdout and 'another process of this run is lost' in first.stderr
    assert words in second.stderr


def test_those_that_fail_alike_end_together(program: Program, tmp_path: pathlib.Path):
    """With the status of each, also after a traceback: none of them is lost."""
    for end in ends(program, tmp_path / 'alike', error="IndexError('a fault of ours')", alone=False, leaving=600):
        assert end.returncode == 1 and 'IndexError: a fault of ours' in end.stderr
        assert 'is lost' not in end.stderr
