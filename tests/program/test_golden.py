"""Nothing that a run leaves on disk changes unless somebody means it to.

After an intended change, run `python tests/program/golden.py portable` and say why in CHANGELOG.md.
"""

import json
import os
import pathlib

import golden
import pytest

pytestmark = pytest.mark.slow


def test_order_text_settings_and_names_are_the_recorded_ones(tmp_path: pathlib.Path):
    """What is the same on every machine."""
    recorded = json.loads(golden.PORTABLE.read_text(encoding='utf-8'))
    found = golden.portable(golden.record(tmp_path / 'golden', names=golden.QUICK))
    assert recorded.keys() == found.keys() == set(golden.QUICK)
    lines = [line for line in golden.differences(recorded, found) if not line.startswith('note: ')]
    assert not lines, '\n'.join(lines)


@pytest.mark.parametrize('resume', [False, True], ids=['anew', 'from old workdirs'])
def test_every_bit_is_the_recorded_one(resume: bool):
    """Against a whole record, made on this machine by the code before."""
    folder = os.environ.get('BERTJAX_GOLDEN')
    if not folder:
        pytest.skip('BERTJAX_GOLDEN names no folder of `python tests/program/golden.py record FOLDER`')
    lines, count = golden.compare(pathlib.Path(folder), resume=resume)
    assert golden.report(lines, count), '\n'.join(lines)
