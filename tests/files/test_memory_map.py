"""Tests that truncating a memory-mapped file ends the process with an error message, not with a signal."""

import subprocess
import sys

from bertjax.errors import UserError

READ = """
import os, sys
from bertjax.files import memory_map
memory_map.explain_bus_errors()
for path in sys.argv[1:]:
    ids = memory_map.map_array(path, '<u2')
os.truncate(path, 0)
print(ids.sum())
"""


def test_truncating_a_mapped_file_is_an_error_message(tmp_path, repository):
    for name in 'ab':
        (tmp_path / name).write_bytes(bytes(10_000))
    command = [sys.executable, '-c', READ, tmp_path / 'a', tmp_path / 'b']
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert result.returncode == UserError.exit_status
    assert result.stderr.startswith(f'error: {tmp_path / "b"}: found 0 bytes, expected 10,000 bytes, as')
