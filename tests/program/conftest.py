"""Fixtures: a small corpus, the program, and trained workdirs, each made once for all workers of a session."""

import pathlib
from collections.abc import Callable, Iterator

import pytest
from forking import Template
from running import EXTRACT, GLUE, NO_SAVES, RUN, RUN12, SWEEP, TUNE, Program

import bertjax

Once = Callable[[str, Callable[[pathlib.Path], object]], pathlib.Path]


@pytest.fixture(scope='session')
def corpus(once: Once) -> pathlib.Path:
    """A file of 120 documents with one sentence per line and blank lines between documents."""
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
    text = '\n\n'.join(documents) + '\n'
    folder = once('corpus', lambda folder: (folder / 'documents.txt').write_text(text, encoding='utf-8'))
    return folder / 'documents.txt'


@pytest.fixture(scope='session')
def program(repository: pathlib.Path, corpus: pathlib.Path, one_device: dict[str, str]) -> Iterator[Program]:
    """The program; its processes have one device and share the compilation cache of the tests."""
    environment = {'PYTHONPATH': '', **one_device}
    template = Template(environment, repository)
    yield Program(repository, corpus, environment, template=template)
    template.close()


@pytest.fixture(scope='session')
def trained(once: Once, program: Program) -> pathlib.Path:
    """The workdir of an uninterrupted run of 24 steps; do not write into it.

    The run is a new process and not a fork: tests that compare bits with it also test another hash seed of Python.
    """
    return _workdir(once, 'trained', lambda workdir: program.without_forks().spawn(f'--workdir={workdir}', *RUN).stdout)


@pytest.fixture(scope='session')
def short_run(once: Once, program: Program) -> pathlib.Path:
    """The workdir of an uninterrupted run of 12 steps in this process; do not write into it."""
    return _workdir(once, 'short_run', lambda workdir: program.run(f'--workdir={workdir}', *RUN12, NO_SAVES).stdout)


@pytest.fixture(scope='module')
def bert(trained: pathlib.Path) -> bertjax.Bert:
    return bertjax.load(trained)


@pytest.fixture(scope='session')
def rte(once: Once) -> pathlib.Path:
    """A folder with RTE in the layout of GLUE; the words of the first sentence decide the label."""

    def fill(folder: pathlib.Path) -> None:
        words = {True: ('river', 'stone', 'bird', 'old', 'runs'), False: ('sings', 'falls', 'house', 'field', 'wind')}
        for name, count in (('train', 96), ('dev', 33), ('test', 20)):
            lines = ['index\tsentence1\tsentence2' + ('' if name == 'test' else '\tlabel')]
            for i in range(count):
                yes = i * 7 % 3 > 0
                first = ' '.join(words[yes][(i * 3 + j * j) % 5] for j in range(3 + i % 9))
                label = '' if name == 'test' else '\tentailment' if yes else '\tnot_entailment'
                lines.append(f'{i}\t{first}\tthe light{label}')
            (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')

    return once('RTE', fill)


@pytest.fixture(scope='session')
def tune(trained: pathlib.Path, rte: pathlib.Path) -> tuple[str, ...]:
    """Arguments of a short fine-tuning on `rte`, from the encoder of `trained`."""
    return (*TUNE, f'--config.init={trained}', f'--config.data={rte}')


@pytest.fixture(scope='session')
def tuned(once: Once, program: Program, tune: tuple[str, ...]) -> pathlib.Path:
    """The workdir of an uninterrupted fine-tuning in this process; do not write into it."""
    return _workdir(once, 'tuned', lambda workdir: program.run(f'--workdir={workdir}', *tune, **GLUE).stdout)


@pytest.fixture(scope='session')
def swept(once: Once, program: Program, tune: tuple[str, ...]) -> pathlib.Path:
    """The workdir of a sweep of four runs; do not write into it."""
    return _workdir(once, 'swept', lambda workdir: program.run(f'--workdir={workdir}', *tune, *SWEEP, **GLUE).stdout)


@pytest.fixture
def extract(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path) -> Callable[..., str]:
    """extract(source, *changes) -> the printed text of run=extract, which writes into tmp_path/features."""

    def run(source: str | pathlib.Path, *changes: str) -> str:
        arguments = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={source}')
        return program.run(*arguments, *changes, **EXTRACT).stdout

    return run


def _workdir(once: Once, name: str, run: Callable[[pathlib.Path], str]) -> pathlib.Path:
    """Returns the workdir that `run` fills; stdout.txt has the text that `run` returns."""

    def fill(folder: pathlib.Path) -> None:
        out = run(folder / 'run')
        (folder / 'run' / 'stdout.txt').write_text(out, encoding='utf-8')

    return once(name, fill) / 'run'
