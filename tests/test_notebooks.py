"""The notebooks of docs/colab run from top to bottom, without a network, with small settings."""

import os
import pathlib
import re

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
def test_it_runs(name: str, tmp_path: pathlib.Path, compile_cache: pathlib.Path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(COLAB.parent.parent), os.environ.get('PYTHONPATH', '')]))
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(compile_cache))
    notebook = nbformat.read(COLAB / f'{name}.ipynb', as_version=4)
    for number, cell in enumerate(notebook.cells):
        if 'parameters' in cell.metadata.get('tags', ()):
            notebook.cells.insert(number + 1, nbformat.v4.new_code_cell(SMALL[name]))
            break
    NotebookClient(notebook, timeout=300, resources={'metadata': {'path': str(tmp_path)}}).execute()
    printed = ''.join(str(output.get('text', '')) for cell in notebook.cells for output in cell.get('outputs', ()))
    assert 'error:' not in printed, printed
