"""A small corpus, the program, and one trained workdir for all tests of a session."""

import os
import pathlib

import pytest
from running import GLUE, RUN, TUNE, Program


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


@pytest.fixture(scope='session')
def rte(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder in GLUE's layout: RTE whose answer lies in the words of the first sentence."""
    folder = tmp_path_factory.mktemp('glue') / 'RTE'
    folder.mkdir()
    words = {True: ('river', 'stone', 'bird', 'old', 'runs'), False: ('sings', 'falls', 'house', 'field', 'wind')}
    for name, count in (('train', 96), ('dev', 33), ('test', 20)):
        lines = ['index\tsentence1\tsentence2' + ('' if name == 'test' else '\tlabel')]
        for i in range(count):
            yes = i * 7 % 3 > 0
            first = ' '.join(words[yes][(i * 3 + j * j) % 5] for j in range(3 + i % 9))
            label = '' if name == 'test' else '\tentailment' if yes else '\tnot_entailment'
            lines.append(f'{i}\t{first}\tthe light{label}')
        (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return folder


@pytest.fixture(scope='session')
def tune(trained: pathlib.Path, rte: pathlib.Path) -> tuple[str, ...]:
    """Arguments of a short fine-tuning on `rte`, from the encoder of `trained`."""
    return (*TUNE, f'--config.init={trained}', f'--config.data={rte}')


@pytest.fixture(scope='session')
def tuned(program: Program, tune: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of an uninterrupted fine-tuning; do not write into it."""
    workdir = tmp_path_factory.mktemp('tuned') / 'run'
    result = program.run(f'--workdir={workdir}', *tune, **GLUE)
    (workdir / 'stdout.txt').write_text(result.stdout, encoding='utf-8')
    return workdir
