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
from bertjax.text.tokenizer import load_tokenizer

def memory(kind):
    # ru_maxrss would include the memory of pytest, from which this process was forked.
    return int(re.search(kind + ':\\s+(\\d+)', open('/proc/self/status').read())[1])

tokenizer = load_tokenizer(sys.argv[3])
before = memory('VmRSS')
build_store(sys.argv[1], sys.argv[2], tokenizer, CorpusOptions(workers=1), progress=False)
print((memory('VmHWM') - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize('between', ['\n\n', ' '])
def test_a_large_file_of_any_shape(between, tmp_path, vocabulary):
    block = between.join(' '.join(doc) for doc in documents(5_000)) + between
    with open(tmp_path / 'a.txt', 'w') as file:
        for _ in range((24 << 20) // len(block)):
            file.write(block)
    command = [sys.executable, '-c', _PROGRAM, str(tmp_path / 'a.txt'), str(tmp_path / 'store'), str(vocabulary)]
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(bertjax.__file__).parents[1])}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    (tmp_path / 'a.txt').unlink()
    assert int(printed) < 68  # MiB, less than the text and the usual 50 MiB.
