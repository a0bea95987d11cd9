"""The docs name what is there: files, config keys, recipes, verbs, anchors."""

import functools
import importlib.util
import pathlib
import re

import pytest

from bertjax.config.plain import flatten, plain
from bertjax.config.recipes import distillation, finetuning_config, phase, pretraining_config
from bertjax.tasks.registry import KINDS, options
from bertjax.usage import verbs

REPOSITORY = pathlib.Path(__file__).parent.parent
PAGES = sorted([*REPOSITORY.glob('*.md'), *(REPOSITORY / 'docs').glob('*.md')])

LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
COMPLAINTS = 'What users of other systems complain of'
KEY = re.compile(r'--config\.([A-Za-z_][\w.\[\]]*[\w\]])')


@functools.cache
def recipe(path: pathlib.Path, argument: str = ''):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument) if argument else module.get_config()


@functools.cache
def known_keys() -> set[str]:
    """Every config key of every recipe, and the branches above them."""
    keys: set[str] = set()
    recipes = [(path, '') for path in (REPOSITORY / 'configs').glob('*.py')]
    for path, argument in [*recipes, (REPOSITORY / 'configs' / 'distilbert.py', 'glue:rte')]:
        flat = flatten(plain(recipe(path, argument)))
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
    wanted = {'quickstart', 'data', 'pretraining', 'finetuning', 'architecture'}
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
def test_named_tests_exist(page: pathlib.Path):
    """That of each complaint, of docs/troubleshooting.md, among them."""
    named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', prose(page))
    missing = [(path, name) for path, name in named if f'\ndef {name}(' not in prose(REPOSITORY / path)]
    assert not missing, f'{page.name}: {missing}'


def test_each_complaint_has_a_test():
    """Its thread, what is done about it, and at least one test that holds it."""
    rows = re.findall(r'^\| (.+?) \| (.+) \| (.+) \|$', section('troubleshooting', COMPLAINTS), re.MULTILINE)[1:]
    assert len(rows) == 20 and all('`tests/' in test and here for _, here, test in rows)
    assert all(re.search(r'\w#\d+', complaint) for complaint, *_ in rows)


def test_what_a_run_may_start_from_is_said_alike():
    """A name on the hub is pulled, for `init` as for a teacher: no page, recipe or comment says less."""
    row = r'^\| `(?:distill\.teacher|init)` .*$'
    said = [line for page in PAGES for line in re.findall(row, prose(page), re.MULTILINE)]
    for path in (REPOSITORY / 'configs').glob('*.py'):
        said += re.findall(r'CHECKPOINT is [^.]*', prose(path))
    assert len(said) > 8 and all('hub' in line or 'bertjax.load' in line for line in said), said
    assert not [page.name for page in PAGES if 'Nothing is downloaded' in prose(page)]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_verbs_exist(page: pathlib.Path):
    named = set(re.findall(r'config\.run=(\w+)', prose(page))) | set(re.findall(r'`run=(\w+)`', prose(page)))
    assert named <= {*verbs(), 'VERB'}, f'{page.name}: {named}'


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_recipes_of_commands_build(page: pathlib.Path):
    for name, argument in re.findall(r'--config=(configs/\w+\.py)(?::([\w=,/]+))?', prose(page)):
        assert recipe(REPOSITORY / name, argument)


def test_a_command_has_keys_of_its_own_recipe():
    """Not only those of some recipe: a key of pre-training is refused by a recipe for a task."""
    for page in PAGES:
        for line in re.findall(r'^.*bertjax\.main --config=configs/.*$', prose(page), re.MULTILINE):
            name, argument = re.search(r'--config=(configs/\w+\.py):?(glue:\w+)?', line).groups()
            flat = flatten(plain(recipe(REPOSITORY / name, argument or '')))
            known = {*flat, *(key[:i] for key in flat for i, letter in enumerate(key) if letter in '.[')}
            assert {*KEY.findall(line)} - {'KEY'} <= known, line


def test_the_command_of_the_tests_is_the_readme_s():
    """One command, that needs nothing before it; .ci/run takes it from there."""
    found = re.findall(r"^pip install -e '\.\[test\]'.*$", prose(REPOSITORY / 'README.md'), re.MULTILINE)
    assert found == ["pip install -e '.[test]' && python -m pytest -m 'slow or not slow'"]
    installs = re.findall(r'^.*pip install.*$', prose(REPOSITORY / '.ci' / 'run'), re.MULTILINE)
    upgrade, taken = installs
    assert "--upgrade pip 'ruff" in upgrade and taken.startswith('command=$(grep -m 1') and 'README.md' in taken


def section(page: str, title: str) -> str:
    """What stands below a heading of the second order, as far as the next."""
    text = prose(REPOSITORY / 'docs' / f'{page}.md')
    return text[text.index(f'\n## {title}\n') + 1 :].partition('\n## ')[0]


def keys_of(text: str) -> list[str]:
    return re.findall(r'^\| `([a-z]\w*(?:\.\w+)*)` \| (?:`[^`]*`)? ?\|', text, re.MULTILINE)


def test_the_tables_of_keys_are_complete():
    """docs/pretraining.md has a row for every key of the base recipe and of a phase, and no other."""
    base = flatten(pretraining_config())
    leaves = {key for key in base if not key.startswith('phases')} | {'phases'}
    in_phases = {f'phases.{key}' for key in plain(phase(steps=1))}
    assert_keys(keys_of(section('pretraining', 'Config keys')), leaves | in_phases)


def test_the_tables_of_keys_are_complete_for_tasks():
    """docs/finetuning.md has a row for every key but those of config.task."""
    base = {key for key in flatten(finetuning_config('')) if not key.startswith('task.')}
    assert_keys(keys_of(section('finetuning', 'Config keys')), base)


# The page of each verb that uses a finished model; the keys that all of them have stand on the first.
VERB_PAGES = {'extract': 'features', 'fill': 'filling'}


@pytest.mark.parametrize('verb', VERB_PAGES)
def test_the_tables_of_keys_are_complete_for_verbs_that_use_a_model(verb: str):
    text, base = section(VERB_PAGES[verb], 'Config keys'), flatten(recipe(REPOSITORY / 'configs' / f'{verb}.py'))
    of_verb = {key for key in base if key.startswith(f'{verb}.')}
    shared = set(base) - of_verb if verb == 'extract' else set()
    assert_keys(keys_of(text), shared | of_verb)
    assert_defaults(text, base, at_least=len(of_verb))


def test_the_table_of_keys_of_a_distillation_is_complete():
    """docs/distillation.md has a row for every key of config.distill, with its default."""
    base = {key: value for key, value in flatten(distillation(finetuning_config(''))).items() if key[:8] == 'distill.'}
    text = section('distillation', 'Config keys')
    assert_keys(keys_of(text), set(base))
    assert_defaults(text, base, at_least=len(base))


def test_the_table_of_keys_is_complete_for_attention():
    config = flatten(plain(recipe(REPOSITORY / 'configs' / 'attention.py')))
    text = section('attention', 'Config keys')
    assert_keys(keys_of(text), set(config))
    assert_defaults(text, config, at_least=len(config))


def test_the_table_of_keys_is_complete_for_conversion():
    config = flatten(plain(recipe(REPOSITORY / 'configs' / 'convert.py')))
    text = section('checkpoints', 'Converting')
    assert_keys(keys_of(text), set(config))
    assert_defaults(text, config, at_least=len(config))


def assert_keys(listed: list[str], wanted: set[str]) -> None:
    assert len(listed) == len(set(listed)), 'a key twice'
    assert wanted == set(listed), wanted ^ set(listed)


def test_the_tables_say_the_defaults():
    base = {**flatten(pretraining_config()), **{f'phases.{key}': value for key, value in plain(phase(steps=1)).items()}}
    assert_defaults(section('pretraining', 'Config keys'), base, at_least=60)
    assert_defaults(section('finetuning', 'Config keys'), flatten(finetuning_config('')), at_least=45)


def assert_defaults(text: str, base: dict, *, at_least: int) -> None:
    rows = re.findall(r'^\| `([\w.]+)` \| `([^`]*)` \|', text, re.MULTILINE)
    wrong = {key: (said, base[key]) for key, said in rows if key in base and said != _written(base[key])}
    assert len(rows) >= at_least and not wrong, wrong


TASK_SECTIONS = {
    'glue': 'GLUE',
    'squad': 'SQuAD',
    'tagging': 'Tagging',
    'multiple_choice': 'Multiple choice',
    'classification': 'Classification and regression',
    'multi_label': 'Several labels',
    'relation': 'Relations',
}


@pytest.mark.parametrize('kind', KINDS)
def test_options_of_a_task_are_told(kind: str):
    """Every field of the task's class, with its default, and no other."""
    text = section('finetuning', TASK_SECTIONS[kind])
    base = {f'task.{name}': option.default for name, option in options(kind).items()}
    assert_keys([key for key in re.findall(r'^\| `(task\.\w+)` \| `', text, re.MULTILINE)], set(base))
    assert_defaults(text, base, at_least=len(base))


def test_figures_of_glue_are_those_of_its_table():
    from bertjax.tasks.sentence.glue_table import TASKS

    rows = re.findall(
        r'^\| `(\w+)` \| `[^|]*\| ([a-z0-9, ]+) \| (`[^|]+)\|', section('finetuning', 'GLUE'), re.MULTILINE
    )
    assert {name for name, _, _ in rows} == set(TASKS) - {'ax'}
    for name, figures, files in rows:
        assert tuple(figures.split(', ')) == TASKS[name].measures
        splits = [*TASKS[name].splits.values(), *(TASKS['ax'].splits.values() if name == 'mnli' else ())]
        assert re.findall('`(.+?)`', files) == [split.server for split in splits if split.server]


def _written(value: object) -> str:
    if isinstance(value, float):
        return f'{value:g}'
    if isinstance(value, list):  # as it is written on the command line
        value = tuple(value)
    return "''" if value == '' else str(value)


def test_the_layout_names_what_is_there():
    """Every file of every folder, by its name, and no other; of runs/ the verbs."""
    text = section('architecture', 'Layout')
    told = dict(re.findall(r'^ {6}(\w[\w/]*)/ +(.*?)(?=^ {4,6}\S)', text, re.MULTILINE | re.DOTALL))
    package = REPOSITORY / 'bertjax'
    there = {
        path.relative_to(package).as_posix(): path for path in package.rglob('*') if (path / '__init__.py').exists()
    }
    assert told.keys() == there.keys()
    for folder, path in there.items():
        files = {file.name for file in path.glob('*.py')} - {'__init__.py'}
        if folder == 'runs':
            files = {name.removesuffix('.py') for name in files}
            assert files == set(verbs()) and files <= set(re.findall(r'\w+', told[folder]))
        else:
            named = set(re.findall(r'\w+\.py', re.sub(r'\w+/\w+\.py', '', told[folder])))
            assert named == files, (folder, named ^ files)
