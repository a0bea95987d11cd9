"""The config of the run, and its differences from the recipe."""

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import to_plain
from bertjax.errors import UserError
from bertjax.pages.page import Section
from bertjax.report.run_record import Run
from bertjax.workdir.differences import comparable_keys, find_differences, format_literal, resolve_like


def config_section(run: Run) -> Section:
    """Returns the section about the config of any run."""
    data = {
        'recipe': run.recipe,
        'all': [(key, format_literal(value)) for key, value in comparable_keys(run.config).items()],
        'fingerprints': sorted(run.config.get('fingerprints', {}).items()),
        'differences': None,
        'error': '',
    }
    try:
        recipe = to_plain(load_recipe(find_recipe(run.recipe)))
    except UserError as error:
        return Section('config', 'Config', data | {'error': error})
    same_kind = ('task' in recipe) == run.is_task
    if same_kind and (not run.is_task or recipe['task']['kind'] == run.config['task']['kind']):
        recipe = resolve_like(recipe, run.config) if run.recorded else recipe
        data['differences'] = find_differences(recipe, run.config)
    return Section('config', 'Config', data)
