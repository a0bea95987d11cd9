"""The files that a run writes change only on purpose.

After an intended change, run `python tests/program/golden.py portable` and give the reason in CHANGELOG.md.
"""

import dataclasses
import json
import os
import pathlib

import golden
import pytest
from running import Program

pytestmark = pytest.mark.slow


def test_the_portable_part_is_the_recorded_one(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """This part is the same on every machine, and whether the runs are processes or not."""

    def start(folder: pathlib.Path, name: str, number: int, tree: pathlib.Path, expected: int) -> None:
        in_folder = dataclasses.replace(program, repository=folder)
        in_folder.run(*golden.command_of(name, number), recipe='', small=False, status=expected)

    monkeypatch.setattr(golden, '_start', start)
    recorded = json.loads(golden.PORTABLE.read_text(encoding='utf-8'))
    found = golden.portable(golden.record(tmp_path / 'golden', names=golden.QUICK, jobs=1))
    assert recorded.keys() == found.keys() == set(golden.QUICK)
    lines = [line for line in golden.differences(recorded, found) if not line.startswith('note: ')]
    assert not lines, '\n'.join(lines)


@pytest.mark.parametrize('resume', [False, True], ids=['new runs', 'recorded workdirs'])
def test_every_bit_is_the_recorded_one(resume: bool):
    """Compares with a full record that earlier code made on this machine."""
    folder = os.environ.get('BERTJAX_GOLDEN')
    if not folder:
        pytest.skip('needs BERTJAX_GOLDEN=FOLDER, made with `python tests/program/golden.py record FOLDER`')
    lines, count = golden.compare(pathlib.Path(folder), resume=resume)
    assert golden.report(lines, count), '\n'.join(lines)
