"""The notebooks of docs/colab run from top to bottom, without a network, with small settings."""

import os
import pathlib
import re
import tomllib

import nbformat
import pytest
from nbclient import NotebookClient

COLAB = pathlib.Path(__file__).parent.parent / 'docs' / 'colab'
# In place of the values of the cell `parameters`.
SMALL = {
    'pretrain': 'STEPS = 20',
    'finetune': 'STEPS, EPOCHS = 20, 1',
    'features_and_attention': 'STEPS = 20',
    'distil': 'STEPS, EPOCHS = 20, 1',
    'own_loop': 'STEPS, UPDATES = 20, 3',
}


def test_they_lead_to_the_repository():
    """That of pyproject.toml, wherever a page or a notebook names it."""
    top = COLAB.parent.parent
    repository = tomllib.loads((top / 'pyproject.toml').read_text(encoding='utf-8'))['project']['urls']['Repository']
    for path in COLAB.glob('*.ipynb'):
        badge = repository.replace('https://github.com/', 'https://colab.research.google.com/github/')
        text = path.read_text(encoding='utf-8')
        assert f'{badge}/blob/main/docs/colab/{path.name}' in text and f'git+{repository}' in text, path
    for path in (top / 'README.md', *top.glob('docs/**/*.md'), *COLAB.glob('*.ipynb')):
        named = re.findall(r'github(?:\.com)?/([\w.-]+/bertjax)\b', path.read_text(encoding='utf-8'))
        assert {*named} <= {repository.removeprefix('https://github.com/')}, path


def test_each_has_small_settings_and_a_badge():
    found = {path.stem: nbformat.read(path, as_version=4) for path in COLAB.glob('*.ipynb')}
    assert found.keys() == SMALL.keys()
    for name, notebook in found.items():
        badge = re.search(
            r'https://colab\.research\.google\.com/github/[\w/.-]+/docs/colab/(\w+)\.ipynb', notebook.cells[0].source
        )
        assert badge and badge[1] == name
        nbformat.validate(notebook)
        assert any('parameters' in cell.metadata.get('tags', ()) for cell in notebook.cells)
        assert any(cell.get('outputs') for cell in notebook.cells)  # what a reader sees who does not run it


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_it_runs(name: str, tmp_path: pathlib.Path, one_device: dict[str, str], monkeypatch):
    path = os.pathsep.join([str(COLAB.parent.parent), os.environ.get('PYTHONPATH', '')])
    for variable, value in (one_device | {'PYTHONPATH': path}).items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(COLAB / f'{name}.ipynb', as_version=4)
    for number, cell in enumerate(notebook.cells):
        if 'parameters' in cell.metadata.get('tags', ()):
            notebook.cells.insert(number + 1, nbformat.v4.new_code_cell(SMALL[name]))
            break
    NotebookClient(notebook, timeout=300, resources={'metadata': {'path': str(tmp_path)}}).execute()
    printed = ''.join(str(output.get('text', '')) for cell in notebook.cells for output in cell.get('outputs', ()))
    assert 'error:' not in printed, printed
