"""run=convert: write a finished model, of any readable format, in other formats, without training; WORKDIR/export."""

import pathlib

from ml_collections import ConfigDict

from bertjax.config.using import using_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.paths import user_name
from bertjax.loading.load_model import load_requested_model
from bertjax.loading.save_model import model_to_export
from bertjax.memory import return_freed_memory
from bertjax.terminal import Console
from bertjax.workdir.exports import EXPORT_FOLDERS, formats_of, write_exports
from bertjax.workdir.lock import has_run, lock_workdir
from bertjax.writers.console import print_output_files

VERB = Verb()


def run(config: ConfigDict, workdir: str) -> None:
    """Writes the model of config.init, or the workdir's own, to WORKDIR/export, as config.convert.formats says.

    Args:
      config: of the recipe `convert`.
      workdir: a new one; without config.init that of the model.

    Raises:
      UserError: no model, a format that cannot hold it, or a folder that would be replaced.
    """
    settings, folder = using_settings(config, 'convert'), pathlib.Path(workdir)
    formats = formats_of(settings.options['formats'])
    _check_target(folder, formats, bool(settings.init))
    return_freed_memory()
    with lock_workdir(folder, results_only=True):
        model = load_requested_model(settings, folder)
        write_exports(model_to_export(model, formats, 'config.convert.formats'), folder, formats)
    places = {place: what for place, what in EXPORT_FOLDERS.items() if place.removeprefix('export/') in formats}
    print_output_files(Console(highlight=False, soft_wrap=True), folder, places, exported=True)


def _check_target(folder: pathlib.Path, formats: tuple[str, ...], given: bool) -> None:
    """Refuses to replace an export, or to put one beside the run or the export of another model."""
    export = folder / 'export'
    if given and (has_run(folder) or (folder / 'config.json').exists() or export.exists()):
        found = f'{user_name(folder)}, which has a model of its own'
        raise UserError(
            '--workdir', found, 'a new folder', 'give another one, or leave config.init out to convert that'
        )
    for name in formats:
        if (export / name).exists():
            fix = 'remove it, or leave this format out'
            raise UserError(user_name(export / name), 'a folder that would be replaced', 'nothing', fix)
