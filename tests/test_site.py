"""The site of docs/ builds without a warning: no dead link, no missing module or page."""

import pathlib
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest

DOCS = pathlib.Path(__file__).parent.parent / 'docs'


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: pathlib.Path):
    repository = DOCS.parent
    for name in ('docs', 'bertjax'):
        shutil.copytree(repository / name, tmp_path / name, ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copy(repository / 'zensical.toml', tmp_path)
    command = [sys.executable, '-m', 'zensical', 'build', '--strict']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / 'site' / 'reference' / 'index.html').read_text(encoding='utf-8')
    assert 'id="bertjax.api.load"' in reference and 'id="bertjax.api.Bert.encode"' in reference


def test_every_page_is_in_the_navigation():
    config = tomllib.loads((DOCS.parent / 'zensical.toml').read_text(encoding='utf-8'))
    listed = list(_pages(config['project']['nav']))
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob('*.md'))


def _pages(nav: Any):
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(part)
