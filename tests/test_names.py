"""The names in the package: replaced names do not come back, and names of classes and type aliases are unique."""

import ast
import collections
import functools
import pathlib
import re

PACKAGE = pathlib.Path(__file__).parent.parent / 'bertjax'

# {a name that only this project used: the standard term for it}
REPLACED = {
    'mend': 'fix',
    'dear': 'save_residual',
    'looked_up': 'sorted_lookup',
    'chosen_rows': 'onehot_lookup',
    'Lowering': 'StepLowering',
    'Programs': 'CompiledSteps',
    'Votes': 'AnyProcessFlags',
    'Patience': 'EarlyStopping',
    'Timesheet': 'GoodputClock',
    'Announce': 'OnCompile',
    'nobody': 'no_op',
    'Member': 'VmappedRun',
    'Lesson': 'DistillSpec',
    'first_before_others': 'primary_first',
    'is_first': 'is_primary',
    'from_first': 'broadcast_from_primary',
    'train_in': 'fit',
    'continue_or_begin': 'resume_or_start',
    'working_in': 'lock_workdir',
    'worked_on': 'mirrored_workdir',
    'mute': 'disable_writes',
    'init_own': 'init_aux',
    'guide': 'teacher_fn',
    'rooms': 'slot_capacities',
    'Places': 'PackedLayout',
    'choose_places': 'choose_layout',
}
MODULES = ('beginning', 'levels', 'session', 'saved', 'loaded', 'recorded', 'places', 'fitting', 'asked', 'kept')
MODULES += ('whole', 'muted', 'votes', 'spread', 'means', 'sharing', 'groups', 'timesheet', 'teaching', 'apart')
MODULES += ('mapped', 'past')


# {kind of node: its attribute that is the name of a class, function, variable, attribute or parameter}
NAMED = {ast.ClassDef: 'name', ast.FunctionDef: 'name', ast.Name: 'id', ast.Attribute: 'attr', ast.arg: 'arg'}


@functools.cache
def names_in(path: pathlib.Path) -> tuple[set[str], list[str]]:
    """The names in a module, and the names of its public classes and type aliases."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    names = {getattr(node, NAMED[type(node)]) for node in ast.walk(tree) if type(node) in NAMED}
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith('_')]
    # A type alias is the only constant in CapWords. A TypeVar, which is a call, is local to its module.
    values = [node for node in tree.body if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call)]
    targets = [target.id for node in values for target in node.targets if isinstance(target, ast.Name)]
    return names, classes + [name for name in targets if re.fullmatch('[A-Z][a-z]+([A-Z][a-z]+)*', name)]


def test_replaced_names_do_not_come_back():
    found = []
    for path in sorted(PACKAGE.rglob('*.py')):
        if path.stem in MODULES:
            found.append(f'{path.relative_to(PACKAGE)} is called {path.stem}')
        for name in names_in(path)[0] & REPLACED.keys():
            found.append(f'{path.relative_to(PACKAGE)}: {name}, say {REPLACED[name]}')
    assert not found


def test_the_name_of_a_class_or_type_alias_is_unique():
    """A search for a public class or a type alias finds one definition."""
    places = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob('*.py')):
        for name in names_in(path)[1]:
            places[name].append(path.relative_to(PACKAGE).as_posix())
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_no_folder_has_more_than_24_files():
    counts = collections.Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob('*.py'))
    assert not {folder: count for folder, count in counts.items() if count > 24}


def test_replaced_words_do_not_come_back_in_prose():
    """Prose is the text of docstrings, comments and messages."""
    pattern = re.compile(r'\b(mend|mends|mended|is no writer|of a run of its own)\b')
    found = [path for path in PACKAGE.rglob('*.py') if pattern.search(path.read_text(encoding='utf-8'))]
    assert not found
