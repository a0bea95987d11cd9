"""Everything that the documentation names exists: files, config keys, recipes, verbs, anchors and tests."""

import functools
import pathlib
import re

import pytest
from ml_collections import ConfigDict

from bertjax.config.files import load_recipe
from bertjax.config.plain import flatten, to_plain
from bertjax.config.recipes import phase
from bertjax.usage import verbs

REPOSITORY = pathlib.Path(__file__).parent.parent
PAGES = sorted([*REPOSITORY.glob('*.md'), *(REPOSITORY / 'docs').glob('*.md')])

LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
COMPLAINTS = 'What users of other systems complain of'
KEY = re.compile(r'--config\.([A-Za-z_][\w.\[\]]*[\w\]])')
NAMED_KEY = re.compile(r'`(?:config\.)?([a-z]\w*(?:\.\w+)+)(?:=[^`]*)?`')
CODE = {'.ipynb', '.py', '.sh', '.yaml'}
FILES = {'gz', 'html', 'json', 'jsonl', 'md', 'npy', 'onnx', 'png', 'py', 'safetensors', 'sh', 'tsv', 'txt', 'zip'}


@functools.cache
def recipe(path: pathlib.Path, argument: str = '') -> ConfigDict:
    return load_recipe(f'{path}:{argument}')


@functools.cache
def known_keys() -> set[str]:
    """Every config key of every recipe, and the prefixes of nested keys."""
    keys: set[str] = set()
    recipes = [(path, '') for path in (REPOSITORY / 'configs').glob('*.py')]
    for path, argument in [*recipes, (REPOSITORY / 'configs' / 'distilbert.py', 'glue:rte')]:
        flat = flatten(to_plain(recipe(path, argument)))
        keys |= {*flat, *(key[:i] for key in flat for i, letter in enumerate(key) if letter in '.[')}
    return keys


def prose(page: pathlib.Path) -> str:
    return page.read_text(encoding='utf-8')


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r'```.*?```', '', prose(page), flags=re.DOTALL)
    titles = re.findall(r'^#+ (.+)$', text, re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower().replace('`', '')).replace(' ', '-') for title in titles}


def test_the_pages_exist():
    names = {page.relative_to(REPOSITORY).as_posix() for page in PAGES}
    expected = {'index', 'data', 'pretraining', 'finetuning', 'models', 'scaling', 'keys', 'architecture'}
    assert names >= {'CONTRIBUTING.md', 'CHANGELOG.md', *(f'docs/{name}.md' for name in expected)}


def test_the_documentation_is_short():
    """At most 700 words in README.md, and 12 pages with 30,000 words in docs/, tables and commands included."""
    pages = [prose(page) for page in (REPOSITORY / 'docs').rglob('*.md')]
    assert len(pages) <= 12 and sum(len(re.findall(r'\S*\w\S*', page)) for page in pages) <= 30_000
    assert len(prose(REPOSITORY / 'README.md').split()) <= 700
    assert len(prose(REPOSITORY / 'CONTRIBUTING.md').split()) <= 800


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_are_not_dead(page: pathlib.Path):
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
def test_keys_that_the_prose_names_exist(page: pathlib.Path):
    """Checks keys such as `masking.rate`, with or without `config.` and a value."""
    known = known_keys() | {f'phases.{key}' for key in to_plain(phase(steps=1))}
    groups = {key.partition('.')[0] for key in known if '.' in key}
    named = [key for key in NAMED_KEY.findall(prose(page)) if key.rpartition('.')[2] not in FILES]
    unknown = [key for key in named if key.partition('.')[0] in groups and key not in known]
    assert not unknown, f'{page.name}: {unknown}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: pathlib.Path):
    names = re.findall(r'\b((?:configs|bertjax|tests|docs)/[\w/.-]+\.(?:py|md|png))\b', prose(page))
    missing = sorted({name for name in names if not (REPOSITORY / name).exists()})
    assert not missing, f'{page.name}: {missing}'


def test_pages_that_the_code_names_exist():
    folders = ('bertjax', 'configs', 'benchmarks', 'launch', 'tests', 'docs/colab')
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob('*') if path.suffix in CODE]
    named = {(path.name, page) for path in files for page in re.findall(r'docs/\w+\.md', prose(path))}
    assert len(named) > 30 and not [each for each in named if not (REPOSITORY / each[1]).exists()]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: pathlib.Path):
    """Checks `tests/FILE.py::NAME`, also in the table of complaints in docs/troubleshooting.md."""
    named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', prose(page))
    missing = [(path, name) for path, name in named if f'\ndef {name}(' not in prose(REPOSITORY / path)]
    assert not missing, f'{page.name}: {missing}'


def test_each_complaint_has_a_test():
    """Each row names the thread of the complaint, the answer to it and at least one test."""
    rows = re.findall(r'^\| (.+?) \| (.+) \| (.+) \|$', section('troubleshooting', COMPLAINTS), re.MULTILINE)[1:]
    assert len(rows) == 22 and all('`tests/' in test and answer for _, answer, test in rows)
    assert all(re.search(r'\w#\d+', complaint) for complaint, *_ in rows)


def test_all_texts_say_that_a_model_may_be_pulled_from_the_hub():
    """Each description of `config.init`, of a teacher and of `bertjax.load` mentions names on the hub."""
    paragraph, row = r'^(?:`CHECKPOINT` is|A teacher is|`load` takes)', r'^\| `(?:init|distill\.teacher)` .*$'
    descriptions = [text for page in PAGES for text in prose(page).split('\n\n') if re.match(paragraph, text)]
    assert len(descriptions) == 3
    descriptions += re.findall(row, prose(REPOSITORY / 'docs' / 'keys.md'), re.MULTILINE)
    for path in (REPOSITORY / 'configs').glob('*.py'):
        descriptions += re.findall(r'CHECKPOINT is [^.]*', prose(path))
    mentions_hub = ['hub' in text or 'bertjax.load' in text for text in descriptions]
    assert len(descriptions) == 8 and all(mentions_hub), descriptions
    assert not [page.name for page in PAGES if 'Nothing is downloaded' in prose(page)]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_verbs_exist(page: pathlib.Path):
    named = set(re.findall(r'config\.run=(\w+)', prose(page))) | set(re.findall(r'`run=(\w+)`', prose(page)))
    assert named <= {*verbs(), 'VERB'}, f'{page.name}: {named}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_recipes_of_commands_build(page: pathlib.Path):
    for name, argument in re.findall(r'--config=(configs/\w+\.py)(?::([\w=,/]+))?', prose(page)):
        assert recipe(REPOSITORY / name, argument)


def test_a_command_uses_keys_of_its_recipe():
    """A key must exist in the recipe of the command: recipes of tasks refuse keys of pre-training."""
    for page in PAGES:
        for line in re.findall(r'^.*bertjax\.main --config=configs/.*$', prose(page), re.MULTILINE):
            name, argument = re.search(r'--config=(configs/\w+\.py):?(glue:\w+)?', line).groups()
            flat = flatten(to_plain(recipe(REPOSITORY / name, argument or '')))
            known = {*flat, *(key[:i] for key in flat for i, letter in enumerate(key) if letter in '.[')}
            assert {*KEY.findall(line)} - {'KEY'} <= known, line


def test_continuous_integration_runs_the_test_command_of_the_readme():
    """README.md has one command, which needs no earlier step; .ci/run reads it from there."""
    found = re.findall(r"^pip install -e '\.\[test\]'.*$", prose(REPOSITORY / 'README.md'), re.MULTILINE)
    assert found == ["pip install -e '.[test]' && python -m pytest"]
    installs = re.findall(r'^.*pip install.*$', prose(REPOSITORY / '.ci' / 'run'), re.MULTILINE)
    upgrade, taken, slow = installs
    assert "--upgrade pip 'ruff" in upgrade and taken.startswith('command=$(grep -m 1') and 'README.md' in taken
    assert slow in prose(REPOSITORY / 'CONTRIBUTING.md')


def section(page: str, title: str) -> str:
    """The text below a `##` heading, up to the next one."""
    text = prose(REPOSITORY / 'docs' / f'{page}.md')
    return text[text.index(f'\n## {title}\n') + 1 :].partition('\n## ')[0]


def test_the_metrics_and_files_of_glue_are_those_of_the_code():
    from bertjax.tasks.sentence.glue_table import TASKS

    rows = re.findall(
        r'^\| `(\w+)` \| `[^|]*\| ([a-z0-9, ]+) \| (`[^|]+)\|', section('finetuning', 'GLUE'), re.MULTILINE
    )
    assert {name for name, _, _ in rows} == set(TASKS)
    for name, metrics, files in rows:
        assert tuple(metrics.split(', ')) == TASKS[name].measures
        servers = [split.server for split in TASKS[name].splits.values()]
        assert re.findall('`(.+?)`', files) == list(filter(None, servers))


def test_the_layout_names_every_folder():
    """The list in docs/architecture.md has one line for each folder of the package, and no others."""
    named = re.findall(r'^ {6}(\w[\w/]*)/ +\S', section('architecture', 'Layout'), re.MULTILINE)
    package = REPOSITORY / 'bertjax'
    folders = [path.parent.relative_to(package).as_posix() for path in package.rglob('*/__init__.py')]
    assert sorted(named) == sorted(folders)
