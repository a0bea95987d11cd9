"""The notebooks of docs/colab run from top to bottom, without a network, with small settings."""

import json
import os
import pathlib
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

COLAB = pathlib.Path(__file__).parent.parent / 'docs' / 'colab'
# {notebook: {text in a cell: line that is added to the cell}}.
SMALL = {
    'pretrain': {'STEPS =': 'STEPS = 1'},
    'finetune': {'STEPS =': 'STEPS, EPOCHS = 1, 1', 'DATA = [{': 'DATA = DATA[::10]'},
    'features_and_attention': {'STEPS =': 'STEPS = 1'},
    'distil': {'STEPS =': 'STEPS, EPOCHS = 1, 1', 'rows += [': 'rows = rows[::10]'},
    'own_loop': {'STEPS =': 'STEPS, UPDATES = 1, 2'},
    'search': {
        'STEPS =': 'STEPS, EPOCHS = 1, 1',
        'corpus = [': 'dev, train, corpus = dev[:20], train[:99], corpus[:300]',
    },
}


def test_links_lead_to_the_repository():
    """Every page and notebook that names the repository uses the address in pyproject.toml."""
    top = COLAB.parent.parent
    repository = tomllib.loads((top / 'pyproject.toml').read_text(encoding='utf-8'))['project']['urls']['Repository']
    for path in COLAB.glob('*.ipynb'):
        badge = repository.replace('https://github.com/', 'https://colab.research.google.com/github/')
        text = path.read_text(encoding='utf-8')
        assert f'{badge}/blob/main/docs/colab/{path.name}' in text and f'git+{repository}' in text, path
    for path in (top / 'README.md', *top.glob('docs/**/*.md'), *COLAB.glob('*.ipynb')):
        named = re.findall(r'github(?:\.com)?/([\w.-]+/bertjax)\b', path.read_text(encoding='utf-8'))
        assert {*named} <= {repository.removeprefix('https://github.com/')}, path


def test_each_notebook_has_small_settings_and_a_badge():
    notebooks = {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in COLAB.glob('*.ipynb')}
    assert notebooks.keys() == SMALL.keys()
    for name, notebook in notebooks.items():
        cells = notebook['cells']
        address = r'https://colab\.research\.google\.com/github/[\w/.-]+/docs/colab/(\w+)\.ipynb'
        badge = re.search(address, ''.join(cells[0]['source']))
        assert badge and badge[1] == name
        assert any('parameters' in cell['metadata'].get('tags', ()) for cell in cells)
        assert any(cell.get('outputs') for cell in cells)  # for readers who do not run the notebook
        assert '!python' not in str(cells)  # a cell calls the program from Python instead


@pytest.fixture(scope='module')
def environment(one_device: dict[str, str]) -> dict[str, str]:
    """The environment variables of a notebook, which imports the package from this checkout."""
    path = os.pathsep.join([str(COLAB.parent.parent), os.environ.get('PYTHONPATH', '')])
    return one_device | {'PYTHONPATH': path}


@pytest.fixture(scope='module')
def client(environment: dict[str, str]) -> Iterator[Any]:
    """A client of one kernel for all notebooks, because a kernel imports JAX for seconds."""
    nbformat = pytest.importorskip('nbformat', reason="needs the extra 'test-all'")
    from nbclient import NotebookClient

    client = NotebookClient(nbformat.v4.new_notebook(), timeout=300)
    with mock.patch.dict(os.environ, environment), client.setup_kernel():
        yield client


def execute(name: str, folder: pathlib.Path, client: Any) -> str:
    """Runs a notebook in a folder, with no variables of earlier notebooks; returns the printed text."""
    import nbformat

    notebook = nbformat.read(COLAB / f'{name}.ipynb', as_version=4)
    nbformat.validate(notebook)
    for text, line in SMALL[name].items():
        cell = next(cell for cell in notebook.cells if cell.cell_type == 'code' and text in cell.source)
        cell.source += f'\n{line}'
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f'%reset -f\n%cd -q {folder}'))
    client.nb = notebook
    client.reset_execution_trackers()
    for number, cell in enumerate(notebook.cells):
        client.execute_cell(cell, number)
    return ''.join(str(output.get('text', '')) for cell in notebook.cells for output in cell.get('outputs', ()))


@pytest.fixture(scope='module')
def pretrained(once: Callable, client: Any) -> pathlib.Path:
    """The folder of the notebook `pretrain`; printed.txt has its output, and the other notebooks use its encoder."""
    run = lambda folder: (folder / 'printed.txt').write_text(execute('pretrain', folder, client))  # noqa: E731
    return once('notebooks', run)


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_a_notebook_runs(name: str, tmp_path: pathlib.Path, client: Any, pretrained: pathlib.Path):
    if name == 'pretrain':
        printed = (pretrained / 'printed.txt').read_text()
    else:
        shutil.copytree(pretrained / 'out', tmp_path / 'out')
        printed = execute(name, tmp_path, client)
    assert 'error:' not in printed, printed
