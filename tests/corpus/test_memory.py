"""Tests that the memory of a build does not grow with the text."""

import os
import pathlib
import subprocess
import sys

import pytest
from corpus_text import documents

import bertjax

_PROGRAM = """
import re, sys
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
build_store(sys.argv[1], sys.argv[2], sys.argv[3], CorpusOptions(workers=1), progress=False)
# ru_maxrss would include the memory of pytest, from which this process was forked.
print(int(re.search('VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize('between', ['\n\n', ' '])
def test_a_large_file_of_any_shape(between, tmp_path, vocabulary):
    block = between.join(' '.join(doc) for doc in documents(20_000)) + between
    with open(tmp_path / 'a.txt', 'w') as file:
        for _ in range((64 << 20) // len(block)):
            file.write(block)
    command = [sys.executable, '-c', _PROGRAM, str(tmp_path / 'a.txt'), str(tmp_path / 'store'), str(vocabulary)]
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(bertjax.__file__).parents[1])}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    (tmp_path / 'a.txt').unlink()
    assert int(printed) < 400  # MiB.
