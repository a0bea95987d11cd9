"""The export of a model to WORKDIR/export, with a folder for each format."""

import dataclasses
import pathlib
from collections.abc import Collection

from bertjax.convert.content import ExportContent
from bertjax.convert.heads import Head
from bertjax.convert.hub import check_push, push
from bertjax.convert.huggingface.config import check_exportable, check_head_exportable
from bertjax.data.features import INPUTS
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.parallel.distributed import decide_on_primary, fetch_to_all_hosts, is_primary
from bertjax.text.tokenizer import Tokenizer

FORMATS = ('hf', 'orbax', 'google', 'stablehlo', 'onnx')
LOADABLE = ('hf', 'orbax', 'google')  # the formats that bertjax loads, in the order of preference
# {folder in the workdir: its description in the summary of a run}.
EXPORT_FOLDERS = {
    'export/hf': 'for transformers: from_pretrained(...)',
    'export/orbax': 'the parameters for other JAX programs',
    'export/stablehlo': 'functions that need only JAX; see its README.md',
    'export/onnx': 'for onnxruntime; see its README.md',
    'export/google': 'for google-research/bert: --init_checkpoint=…/bert_model.ckpt',
}


def split_formats(names: str) -> tuple[str, ...]:
    """Splits config.export_formats or config.convert.formats into names, without duplicates."""
    return tuple(dict.fromkeys(names.split(',')))


def check_formats(
    formats: Collection[str],
    config: BertConfig,
    *,
    vocabulary: str = '',
    tokenizer: Tokenizer | None = None,
    module: BertForTask | None = None,
    head: Head | None = None,
) -> None:
    """Checks that every format can represent the model. The check is cheap, so it runs before the training.

    `vocabulary` is the family of a tokenizer that does not exist yet; '' if it is not known. `module` and `head` are
    None for a pre-training model.

    Raises:
      UserError: A format cannot represent the model.
    """
    if config.shifted_predictions and module is None and (other := [name for name in formats if name != 'orbax']):
        found = f'True with {other[0]} in config.export_formats'
        expected = 'False: only orbax records that a token is predicted from the position before it'
        raise UserError('config.model.shifted_predictions', found, expected, 'set --config.export_formats=orbax')
    functions = [name for name in formats if name in ('stablehlo', 'onnx')]
    if functions and module is not None and len(module.smallest_inputs) > len(INPUTS):
        found = f'{functions[0]} for {type(module).__name__}, which takes more than ids, segments and mask'
        raise UserError('config.export_formats', found, 'hf or orbax', f'remove {functions[0]}')
    if 'hf' in formats or 'google' in formats:
        if module is None:
            check_exportable(config)
        else:
            check_head_exportable(module, head)
    if 'google' in formats:
        from bertjax.convert.google.save import check_google

        check_google(config, head, tokenizer.family if tokenizer else vocabulary or 'wordpiece', tokenizer)
    if 'onnx' in formats:
        from bertjax.convert.onnx import check_onnx

        check_onnx(config, module)


def write_exports(
    content: ExportContent, folder: pathlib.Path, formats: Collection[str], *, is_converted: bool = False
) -> list[pathlib.Path]:
    """Writes WORKDIR/export/FORMAT for each format, and returns these folders.

    `is_converted` says whether the content was read from another export of the workdir.
    """
    content = dataclasses.replace(content, params=fetch_to_all_hosts(content.params))
    directories = {name: folder / 'export' / name for name in formats}
    for name, directory in directories.items():
        write_export(content, directory, name)
    others = [name for name in FORMATS if name not in directories and (folder / 'export' / name).is_dir()]
    if others and is_primary() and not is_converted:
        exported = exported_model(folder)
        loaded = f' ({exported.name} is loaded first)' if exported and exported.name in others else ''
        names = f'{", ".join(others)} from an earlier export{loaded}'
        print(f'{folder / "export"} also has {names}: export again what is outdated')
    return list(directories.values())


def write_export(content: ExportContent, directory: pathlib.Path, name: str) -> None:
    """Writes or replaces an export in the format `name`. This process must be able to read all parameters."""
    # Each format is imported lazily, because most runs need only some of the formats.
    match name:
        case 'hf':
            from bertjax.convert.huggingface.save import export_huggingface as export
        case 'orbax':
            from bertjax.convert.orbax import export_orbax as export
        case 'google':
            from bertjax.convert.google.save import export_google as export
        case 'stablehlo':
            from bertjax.convert.stablehlo import export_stablehlo as export
        case 'onnx':
            from bertjax.convert.onnx import export_onnx as export
    export(content, directory)


def check_push_to(name: str, formats: Collection[str]) -> None:
    """Checks that a push to `name` (config.push_to) can succeed. '' stands for no push.

    Raises:
      UserError: The format 'hf' is not exported; also see `convert/hub.py:check_push`.
    """
    if not name:
        return
    if 'hf' not in formats:
        found = f'{name}, with {",".join(formats) or "no format"} exported'
        fix = 'set --config.export_formats=hf, or leave config.push_to empty'
        raise UserError('config.push_to', found, 'an export in the format hf, which is pushed', fix)
    decide_on_primary(lambda: check_push(name) or 0)  # only the primary process pushes


def push_export(folder: pathlib.Path, name: str, *, private: bool) -> None:
    """Pushes WORKDIR/export/hf to `name`, unless `name` is ''."""
    if name and is_primary():
        print(f'pushed to {push(folder / "export" / "hf", name, private=private)}')


def exported_model(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the export from which a workdir's model is loaded: the first of LOADABLE that exists, or None."""
    paths = (folder / 'export' / name for name in LOADABLE)
    return next((path for path in paths if path.is_dir()), None)
