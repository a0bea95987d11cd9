"""A small corpus, the program, and one trained workdir for all tests of a session."""

import os
import pathlib

import pytest
from running import RUN, Program


@pytest.fixture(scope='session')
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """120 documents of plain sentences, a sentence a line, blank lines between documents."""
    words = 'the a river stone bird light old green runs sings falls under over near house field wind and slow red'
    vocabulary, documents, state = words.split(), [], 12345
    for _ in range(120):
        sentences = []
        for _ in range(6):
            sentence = []
            for _ in range(7):
                state = (state * 1103515245 + 12345) % 2**31
                sentence.append(vocabulary[state // 65536 % len(vocabulary)])
            sentences.append(' '.join(sentence) + '.')
        documents.append('\n'.join(sentences))
    path = tmp_path_factory.mktemp('corpus') / 'documents.txt'
    path.write_text('\n\n'.join(documents) + '\n', encoding='utf-8')
    return path


@pytest.fixture(scope='session')
def program(repository: pathlib.Path, corpus: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program; compiled steps are shared between the runs of a session through jax's cache."""
    environment = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
    environment |= {
        'JAX_COMPILATION_CACHE_DIR': str(tmp_path_factory.mktemp('cache')),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
    return Program(repository, corpus, environment)


@pytest.fixture(scope='session')
def trained(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of an uninterrupted run of 24 steps; do not write into it."""
    workdir = tmp_path_factory.mktemp('trained') / 'run'
    result = program.run(f'--workdir={workdir}', *RUN)
    (workdir / 'stdout.txt').write_text(result.stdout, encoding='utf-8')
    return workdir
