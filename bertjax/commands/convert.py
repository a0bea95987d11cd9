"""run=convert: write a finished model to WORKDIR/export in other formats."""

import pathlib

from ml_collections import ConfigDict

from bertjax.config.inference import inference_settings
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.paths import display_path
from bertjax.loading.load_model import load_requested_model
from bertjax.loading.save_model import model_to_export
from bertjax.memory import return_freed_memory
from bertjax.terminal import Console
from bertjax.workdir.exports import EXPORT_FOLDERS, split_formats, write_exports
from bertjax.workdir.lock import has_run, lock_workdir
from bertjax.writers.console import print_output_files

VERB = Verb(needs='convert')


@return_freed_memory()
def run(config: ConfigDict, workdir: str) -> None:
    """Writes the model of config.init, or of the workdir, to WORKDIR/export in the formats of config.convert.formats.

    Raises:
      UserError: There is no model, a format cannot represent the model, or an export would be replaced. Or config.init
        is set, and the workdir has a model already.
    """
    settings, folder = inference_settings(config, 'convert'), pathlib.Path(workdir)
    formats = split_formats(settings.convert.formats)
    _check_target(folder, formats, bool(settings.init))
    with lock_workdir(folder, results_only=True):
        model = load_requested_model(settings, folder)
        content = model_to_export(model, formats, 'config.convert.formats')
        write_exports(content, folder, formats, is_converted=not settings.step)
    files = {path: title for path, title in EXPORT_FOLDERS.items() if path.removeprefix('export/') in formats}
    print_output_files(Console(highlight=False, soft_wrap=True), folder, files, exported=True)


def _check_target(folder: pathlib.Path, formats: tuple[str, ...], has_init: bool) -> None:
    export = folder / 'export'
    if has_init and (has_run(folder) or (folder / 'config.json').exists() or export.exists()):
        found = f'{display_path(folder)}, which has a model already'
        fix = 'give another folder, or leave config.init out to convert this model'
        raise UserError('--workdir', found, 'a new folder', fix)
    for name in formats:
        if (export / name).exists():
            fix = 'remove the folder, or leave this format out'
            raise UserError(display_path(export / name), 'a folder that would be replaced', 'nothing', fix)
