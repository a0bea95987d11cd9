"""The installed wheel works without the checkout: the command, the module, recipes by name, and types."""

import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest
from running import SMALL, Program

from bertjax import __version__
from bertjax.config.files import recipe_names


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(program: Program, tmp_path: pathlib.Path):
    source, site, empty = tmp_path / 'source', tmp_path / 'site', tmp_path / 'empty'
    empty.mkdir()
    for name in ('bertjax', 'configs'):
        shutil.copytree(program.repository / name, source / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('pyproject.toml', 'setup.cfg', 'README.md', 'LICENSE'):
        shutil.copy(program.repository / name, source)
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
    # pip builds a wheel and installs it.
    subprocess.run([*pip, 'install', '-q', '--no-deps', '--no-build-isolation', '--target', site, source], check=True)
    shutil.rmtree(source)

    def call(*command: str | pathlib.Path, status: int = 0) -> str:
        environment = program.environment | {'PYTHONPATH': str(site)}
        done = subprocess.run(
            [sys.executable, *command], cwd=empty, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    command = site / 'bin' / 'bertjax'
    assert call('-c', 'import bertjax; print(bertjax.__file__)').strip() == str(site / 'bertjax' / '__init__.py')
    assert call(command, '--version') == call('-m', 'bertjax', '--version') == f'bertjax {__version__}\n'
    assert 'pretrain_tiny' in call(command, '--help')
    assert (site / 'bertjax' / 'py.typed').exists()
    pages = program.repository / 'bertjax' / 'pages'  # templates, style, scripts
    assert {path.name for path in pages.glob('*.*')} <= {path.name for path in (site / 'bertjax' / 'pages').iterdir()}
    assert sorted(path.stem for path in (site / 'bertjax' / 'configs').glob('*.py')) == recipe_names()
    small = (f'--config.corpus={program.corpus}', *SMALL, '--config.steps=1', f'--workdir={tmp_path / "run"}')
    assert 'export/hf' in call(command, '--config=pretrain_tiny:adam', *small)
    assert (tmp_path / 'run' / 'export' / 'hf' / 'model.safetensors').exists()
    assert 'config.init' in call(command, '--config=glue:rte', f'--workdir={tmp_path / "rte"}', status=2)
    assert '--config=pretrain_tiny' in call(command, '--config=configs/pretrain_tiny.py', '--workdir=x', status=2)
    assert not list(empty.iterdir())


def test_every_package_is_in_the_wheel(repository: pathlib.Path):
    """pyproject.toml lists all packages because the folder of recipes is outside of bertjax/."""
    listed = tomllib.loads((repository / 'pyproject.toml').read_text(encoding='utf-8'))['tool']['setuptools']
    folders = {path.parent.relative_to(repository) for path in (repository / 'bertjax').rglob('__init__.py')}
    assert {'bertjax.configs', *(path.as_posix().replace('/', '.') for path in folders)} == set(listed['packages'])
    assert listed['package-dir'] == {'bertjax.configs': 'configs'}
    for path in (repository / 'bertjax').rglob('*'):
        if path.is_file() and path.suffix not in ('.py', '.pyc'):
            package = path.parent.relative_to(repository).as_posix().replace('/', '.')
            assert any(path.match(pattern) for pattern in listed['package-data'].get(package, ())), path
