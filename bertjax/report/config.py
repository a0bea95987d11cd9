"""What the run was asked for: its config, and what of it is not as in the recipe."""

from markupsafe import Markup

from bertjax.errors import UserError
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.report.run_record import Run
from bertjax.workdir.differences import comparable_keys, find_differences, format_literal, resolve_like


def config(run: Run) -> Section:
    """Of any run."""
    name = parts.code(run.recipe)
    every = [(parts.code(key), parts.code(format_literal(value))) for key, value in comparable_keys(run.config).items()]
    whole = parts.folded(f'all {len(every)} keys', parts.table(['key', 'value'], every, text=(0, 1)))
    return Section('config', 'Config', [*_difference(run, name), whole, *_fingerprints(run)])


def _difference(run: Run, name: Markup) -> list[Markup]:
    try:
        recipe = run.loaded_recipe()
    except UserError as error:
        return [parts.note(f'Not compared with its recipe: {error}')]
    if ('task' in recipe) != run.is_task or (run.is_task and recipe['task']['kind'] != run.config['task']['kind']):
        return [
            parts.note(
                Markup('Not compared with the recipe of the command, {}: it is for something else.').format(name)
            )
        ]
    own = resolve_like(recipe, run.config) if run.recorded else recipe
    rows = [tuple(map(parts.code, (one.key, one.before, one.after))) for one in find_differences(own, run.config)]
    if not rows:
        return [parts.paragraph(Markup('As in the recipe {}, in every key.').format(name))]
    caption = Markup('What differs from the recipe {}').format(name)
    return [parts.table(['key', 'in the recipe', 'here'], rows, text=(0, 1, 2), caption=caption)]


def _fingerprints(run: Run) -> list[Markup]:
    found = run.config.get('fingerprints', {})
    rows = [(key, parts.code(value)) for key, value in sorted(found.items())]
    return [parts.folded('fingerprints', parts.table(['of', 'value'], rows, text=(0, 1)))] if rows else []
