"""After a kill at a file operation of the builder, the same command finishes the store with the same bytes."""

import os
import pathlib
import subprocess
import sys

import pytest

# Runs in a separate process that encodes nothing itself: its forks would not have the threads of a tokenizer.
PROGRAM = """
import pathlib, shutil, sys
from killing import KILLED, in_fork, kill_at
from bertjax.corpus import shards
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.errors import UserError

shards.MIN_SHARD, shards.TARGET_SHARDS = 1 << 11, 2
top, scenario = pathlib.Path(sys.argv[1]), sys.argv[2]
store, start, text, vocabulary = top / 'store', top / 'start', top / 'a.txt', top / 'vocab.txt'
letters = 'abcdefghijklmnopqrst'
vocabulary.write_text('\\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', *letters]) + '\\n')

def write(step):
    words = [letters[i * step % 20] for i in range(4000)]
    documents = (' '.join(words[i:i + 9]) + '.\\n' + ' '.join(words[i:i + 3]) + '.' for i in range(0, 1500, 9))
    text.write_text('\\n\\n'.join(documents))

def build(heldout=0.002, into=store):
    build_store(str(text), into, str(vocabulary), CorpusOptions(heldout=heldout, workers=1), progress=False)

def content(folder):
    files = [path for path in folder.rglob('*') if path.is_file() and path.name != 'inputs.json']
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}

def killed(number, heldout=0.002):
    with kill_at(number, store):
        build(heldout)

def succeed(work):
    assert in_fork(work) == 0

write(3)
if scenario != 'first build':
    succeed(build)  # A run that was prepared with this store has plans beside it.
    (store / 'plans').mkdir()
    (store / 'plans' / 'plan-0.npy').write_bytes(b'1')
former = content(store) if store.exists() else None
if scenario == 'other text':
    write(7)
elif scenario == 'continued':
    shutil.rmtree(store)
    assert in_fork(lambda: killed(40)) == KILLED
heldout = 0.3 if scenario == 'other settings' else 0.002
succeed(lambda: build(heldout, top / 'expected'))
expected = content(top / 'expected')
if store.exists():
    shutil.copytree(store, start)
    expected |= {name: data for name, data in content(start).items() if name.startswith('plans')}

def restore():
    shutil.rmtree(store, ignore_errors=True)
    if start.exists():
        shutil.copytree(start, store)

count = 0
# The first operations move the former store away.
for number in [*range(1, 13), *range(13, 1000, 7)]:
    status = in_fork(lambda: killed(number, heldout))
    if status == 0:
        break
    assert status == KILLED, (number, status)
    count += 1
    try:
        open_store(store)
    except UserError:
        pass
    if scenario == 'other settings' and number % 2:  # The user reverts the change.
        succeed(build)
        assert content(store) == former, number
    succeed(lambda: build(heldout))
    assert content(store) == expected, (number, content(store).keys() ^ expected.keys())
    restore()
print(count)
"""


SCENARIOS = ('first build', 'other text', 'other settings', 'continued')


@pytest.mark.slow
@pytest.mark.parametrize('scenario', SCENARIOS)
def test_a_killed_build_is_finished(scenario: str, repository: pathlib.Path, tmp_path: pathlib.Path):
    folders = [str(repository), str(repository / 'tests' / 'program')]
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(folders)}
    command = [sys.executable, '-c', PROGRAM, str(tmp_path), scenario]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) >= 18
