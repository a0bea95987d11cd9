"""The structure of the package: import direction, folders that do not need jax, unique names of test files."""

import ast
import collections
import functools
import graphlib
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / 'bertjax'

# A folder or file may import from itself and from the levels below it. In config/, each file has a level: declarations
# of keys are above the code that the keys configure.
LEVELS = [
    {'__main__'},
    {'main'},
    {'command_line', 'program'},
    {'run_verb'},
    {'usage'},
    {'commands'},
    {'doctor'},
    {'report', 'attention_analysis', 'cost'},
    {'api'},
    {'inference'},
    {'loading'},
    {'distill'},
    {'pretrain', 'finetune'},
    {'training'},
    {'workdir'},
    {'config.tables'},
    {'config.saved_config'},
    {'config.resume', 'config.recipes', 'config.files'},
    {'config.check'},
    {'tasks'},
    {'config.pretraining', 'config.finetuning', 'config.inference'},
    {'config.distillation'},
    {'config.run'},
    {'losses', 'checkpoint', 'convert'},
    {'data'},
    {'corpus', 'model'},
    {'text', 'parallel', 'optim', 'metrics', 'writers', 'pages'},
    {'remote'},
    {'config.schema'},
    {'config.ranges', 'config.plain', 'config.suggestions', 'config.verb'},
    {'config', 'cores', 'errors', 'files', 'memory', 'progress', 'terminal', '__version__'},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


@functools.cache
def import_nodes(path: pathlib.Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file, also those within functions."""
    nodes = ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: pathlib.Path) -> set[str]:
    """The names in LEVELS of the modules that a file imports: {'text', 'config.schema', ...}."""
    found = set()
    for node in import_nodes(path):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f'{node.module}.{alias.name}' for alias in node.names]
            modules = names if node.module == 'bertjax' else [node.module]
        found |= {_part(module.split('.')[1:]) for module in modules if module.startswith('bertjax.')}
    return found


def part(path: pathlib.Path) -> str:
    names = path.relative_to(PACKAGE).with_suffix('').parts
    return _part(names[:-1] if names[-1] == '__init__' and len(names) > 1 else names)


def _part(names) -> str:
    """The name in LEVELS of a module: its folder, or `config.FILE` in config/."""
    return '.'.join(names[:2]) if names[0] == 'config' else names[0]


def test_imports_go_one_way():
    wrong = []
    for path in PACKAGE.rglob('*.py'):
        mine = part(path)
        if mine == '__init__':
            continue
        for other in imports(path):
            if LEVEL[other] < LEVEL[mine] or {mine, other} == {'pretrain', 'finetune'}:
                wrong.append(f'{mine}/{path.name} imports {other}')
    assert not wrong, wrong


def module_graph(folder: str) -> dict[str, set[str]]:
    """{module: modules of the same folder that it imports, also within functions}."""
    graph = {path.stem: set() for path in (PACKAGE / folder).glob('*.py') if path.stem != '__init__'}
    for name, imported in graph.items():
        for node in import_nodes(PACKAGE / folder / f'{name}.py'):
            if isinstance(node, ast.ImportFrom) and node.module == f'bertjax.{folder}':
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f'bertjax.{folder}.'):
                imported.add(node.module.split('.')[2])
    return graph


FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / '__init__.py').exists())


@pytest.mark.parametrize('folder', FOLDERS)
def test_no_folder_imports_in_a_circle(folder: str):
    order = graphlib.TopologicalSorter(module_graph(folder))
    assert list(order.static_order())  # raises CycleError, which names the modules


def test_folders_without_jax_and_imports_of_pretraining():
    """Files, remote, text, corpus, metrics and data do not need jax; a pre-training imports no exporter."""
    modules = []
    for folder in ('files', 'remote', 'text', 'corpus', 'metrics', 'data'):
        for path in sorted((PACKAGE / folder).glob('*.py')):
            if path.stem not in ('__init__', 'loader'):
                modules.append(f'bertjax.{folder}.{path.stem}')
    program = 'import sys, importlib\n' + ''.join(f'importlib.import_module({name!r})\n' for name in modules)
    program += 'assert "jax" not in sys.modules, "jax was imported"\nimport bertjax.commands.pretrain\n'
    exporters = [f'bertjax.convert.{name}' for name in ('google.save', 'huggingface.save', 'onnx', 'stablehlo')]
    program += f'assert not {set(exporters)!r} & sys.modules.keys(), "an exporter was imported"\n'
    done = subprocess.run([sys.executable, '-c', program], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_config_becomes_settings_and_goes_no_further():
    """Verbs pass it to config.schema.from_config or finetune/restore.py; all other code takes frozen dataclasses."""
    allowed = {'commands', 'config.recipes', 'config.files', 'config.plain', 'config.saved_config', 'command_line'}
    for path in PACKAGE.rglob('*.py'):
        reads = part(path) in allowed or path.stem in ('settings', 'restore')
        assert reads or 'ml_collections' not in path.read_text(encoding='utf-8'), path


def test_no_two_test_files_have_one_name():
    """pytest refuses the second file of a name, but only when it collects both."""
    names = collections.Counter(path.name for path in pathlib.Path(__file__).parent.rglob('test_*.py'))
    assert not [name for name, count in names.items() if count > 1]
