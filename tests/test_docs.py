"""The docs name what is there: files, config keys, recipes, verbs, anchors."""

import functools
import importlib.util
import pathlib
import re

import pytest

from bertjax.config import flatten, plain
from bertjax.main import verbs
from bertjax.recipe import phase, pretraining_config

REPOSITORY = pathlib.Path(__file__).parent.parent
PAGES = sorted([*REPOSITORY.glob('*.md'), *(REPOSITORY / 'docs').glob('*.md')])

LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
KEY = re.compile(r'--config\.([A-Za-z_][\w.\[\]]*[\w\]])')
BRANCHES = ('model', 'pairs', 'masking', 'optimizer', 'schedule', 'corpus_options', 'vocab', 'seeds', 'mesh', 'head')


@functools.cache
def recipe(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


@functools.cache
def known_keys() -> set[str]:
    """Every config key of every recipe, and the branches above them."""
    keys: set[str] = set()
    for path in (REPOSITORY / 'configs').glob('*.py'):
        flat = flatten(plain(recipe(path)))
        keys |= {*flat, *(key[:i] for key in flat for i, letter in enumerate(key) if letter in '.[')}
    return keys


def prose(page: pathlib.Path) -> str:
    return page.read_text(encoding='utf-8')


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r'```.*?```', '', prose(page), flags=re.DOTALL)
    titles = re.findall(r'^#+ (.+)$', text, re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower().replace('`', '')).replace(' ', '-') for title in titles}


def test_the_pages_are_there():
    names = {page.relative_to(REPOSITORY).as_posix() for page in PAGES}
    wanted = {'quickstart', 'data', 'pretraining', 'architecture'}
    assert names >= {'CONTRIBUTING.md', 'CHANGELOG.md', *(f'docs/{name}.md' for name in wanted)}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path):
    dead = []
    for link in LINK.findall(re.sub(r'```.*?```', '', prose(page), flags=re.DOTALL)):
        if '://' in link:
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead, f'{page.name}: {dead}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_config_keys_exist(page: pathlib.Path):
    text = re.sub(r'^error: .*$', '', prose(page), flags=re.MULTILINE)  # messages about keys that do not exist
    unknown = [key for key in KEY.findall(text) if key not in known_keys() and key != 'KEY']
    assert not unknown, f'{page.name}: {unknown}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: pathlib.Path):
    names = re.findall(r'\b((?:configs|bertjax|tests|docs)/[\w/.-]+\.(?:py|md|png))\b', prose(page))
    missing = sorted({name for name in names if not (REPOSITORY / name).exists()})
    assert not missing, f'{page.name}: {missing}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_verbs_exist(page: pathlib.Path):
    named = set(re.findall(r'config\.run=(\w+)', prose(page))) | set(re.findall(r'`run=(\w+)`', prose(page)))
    assert named <= {*verbs(), 'VERB'}, f'{page.name}: {named}'


def config_tables() -> str:
    text = prose(REPOSITORY / 'docs' / 'pretraining.md')
    return text[text.index('\n## Config keys\n') : text.index('\n## Optimisers and schedules\n')]


def test_the_tables_of_keys_are_complete():
    """docs/pretraining.md has a row for every key of the base recipe and of a phase, and no other."""
    table = re.findall(r'^\| `([\w.]+)` \|', config_tables(), re.MULTILINE)
    base = flatten(pretraining_config())
    leaves = {key for key in base if not key.startswith('phases')} | {'phases'}
    in_phases = {f'phases.{key}' for key in plain(phase(steps=1))}
    listed = [key for key in table if key.split('.')[0] in BRANCHES or key in base or key.startswith('phases')]
    assert len(listed) == len(set(listed)), 'a key twice'
    assert leaves | in_phases == set(listed), (leaves | in_phases) ^ set(listed)


def test_the_tables_say_the_defaults():
    rows = re.findall(r'^\| `([\w.]+)` \| `([^`]*)` \|', config_tables(), re.MULTILINE)
    base = {**flatten(pretraining_config()), **{f'phases.{key}': value for key, value in plain(phase(steps=1)).items()}}
    wrong = {key: (said, base[key]) for key, said in rows if key in base and said != _written(base[key])}
    assert len(rows) > 60 and not wrong, wrong


def _written(value: object) -> str:
    if isinstance(value, float):
        return f'{value:g}'
    return '()' if value == [] else "''" if value == '' else str(value)
