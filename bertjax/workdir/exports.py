"""What a finished model is written as: the formats of config.export_formats, each a folder of WORKDIR/export."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bertjax.convert.google.save import check_google, check_google_vocabulary, export_google
from bertjax.convert.heads import Head
from bertjax.convert.hub import check_push, push
from bertjax.convert.huggingface.config import check_exportable, check_head_exportable
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.onnx import check_onnx, export_onnx
from bertjax.convert.orbax import export_orbax, head_facts, saved_head
from bertjax.convert.stablehlo import export_stablehlo
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel
from bertjax.parallel.distributed import fetch_to_all_hosts, is_primary
from bertjax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportContent:
    """A model that is to be written, and what is said of it.

    Attributes:
      model: with its config.
      params: of it.
      tokenizer: of it.
      head: of a task's model.
      task: fields of the task for a config.json (`id2label` ...).
      extra_files: {name: text} of further files that belong to the model.
      card, about, figures: for the model card, see `convert/huggingface/card.py`.
      dtype, values, files: of a Hugging Face directory that the model is from, see `export_huggingface`.
    """

    model: BertForPreTraining | TaskModel
    params: Any
    tokenizer: Tokenizer
    card: Mapping[str, Any]
    about: Mapping[str, str]
    head: Head | None = None
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extra_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float | None]] = dataclasses.field(default_factory=dict)
    dtype: str = 'float32'
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> BertConfig:
        """Of the model."""
        return self.model.config


def _write_hf(finished: ExportContent, directory: pathlib.Path) -> None:
    export_huggingface(
        finished.params,
        finished.config,
        finished.tokenizer,
        directory,
        card=finished.card,
        head=finished.head,
        task=finished.task,
        extra_files=finished.extra_files,
        about=finished.about,
        figures=finished.figures,
        dtype=finished.dtype,
        values=finished.values,
        files=finished.files,
    )


def _write_orbax(finished: ExportContent, directory: pathlib.Path) -> None:
    head = None
    if finished.head is not None:
        head = {**head_facts(finished.model), **saved_head(finished.head, finished.task)}
    export_orbax(
        finished.params,
        finished.config,
        directory,
        tokenizer=finished.tokenizer,
        head=head,
        extra_files=finished.extra_files,
    )


def _write_google(finished: ExportContent, directory: pathlib.Path) -> None:
    export_google(
        finished.params,
        finished.config,
        finished.tokenizer,
        directory,
        head=finished.head,
        extra_files=finished.extra_files,
    )


def _write_stablehlo(finished: ExportContent, directory: pathlib.Path) -> None:
    export_stablehlo(finished.params, finished.model, finished.tokenizer, directory, extra_files=finished.extra_files)


def _write_onnx(finished: ExportContent, directory: pathlib.Path) -> None:
    export_onnx(finished.params, finished.model, finished.tokenizer, directory, extra_files=finished.extra_files)


_WRITERS: dict[str, Callable[[ExportContent, pathlib.Path], None]] = {
    'hf': _write_hf,
    'orbax': _write_orbax,
    'google': _write_google,
    'stablehlo': _write_stablehlo,
    'onnx': _write_onnx,
}
FORMATS = tuple(_WRITERS)
# Of a workdir, for what is printed.
EXPORT_FOLDERS = {
    'export/hf': 'for transformers: from_pretrained(...)',
    'export/orbax': 'the parameters for other JAX programs',
    'export/stablehlo': 'functions that run with JAX alone: see the README.md there',
    'export/onnx': 'for onnxruntime: see the README.md there',
    'export/google': 'for google-research/bert: --init_checkpoint=…/bert_model.ckpt',
}


def formats_of(names: str) -> tuple[str, ...]:
    """config.export_formats as a list, each once."""
    return tuple(dict.fromkeys(names.split(',')))


def check_formats(
    formats: Collection[str],
    config: BertConfig,
    *,
    vocabulary: str = '',
    model: TaskModel | None = None,
    head: Head | None = None,
) -> None:
    """Refuses a model that one of the formats cannot hold; cheap, to be called before training starts.

    Args:
      formats: of config.export_formats; none where nothing is exported.
      config: of the model.
      vocabulary: the tokenizer's family, '' where that is not known yet.
      model, head: of a task.

    Raises:
      UserError: it cannot.
    """
    if 'hf' in formats or 'google' in formats:
        if model is None:
            check_exportable(config)
        else:
            check_head_exportable(model, head)
    if 'google' in formats:
        check_google(config, head)
        if vocabulary:
            check_google_vocabulary(vocabulary)
    if 'onnx' in formats:
        check_onnx(config, model)


def write_exports(finished: ExportContent, folder: pathlib.Path, formats: Collection[str]) -> list[pathlib.Path]:
    """WORKDIR/export/FORMAT for each of the formats.

    Args:
      finished: the model.
      folder: WORKDIR.
      formats: of config.export_formats.

    Returns:
      What was written.
    """
    written, finished = [], dataclasses.replace(finished, params=fetch_to_all_hosts(finished.params))
    for name in formats:
        written.append(folder / 'export' / name)
        write_export(finished, written[-1], name)
    return written


def write_export(finished: ExportContent, directory: pathlib.Path, name: str) -> None:
    """Writes a directory of one of FORMATS, which replaces an earlier one; this process can read all parameters."""
    _WRITERS[name](finished, directory)


def check_push_to(name: str, formats: Collection[str]) -> None:
    """Refuses a push to config.push_to that cannot succeed, before compute is spent; '' for none.

    Raises:
      UserError: nothing to push, or see `convert/hub.py:check_push`.
    """
    if not name:
        return
    if 'hf' not in formats:
        found = f'{name}, where {",".join(formats) or "nothing"} is exported'
        fix = 'set --config.export_formats=hf, or leave config.push_to out'
        raise UserError('config.push_to', found, 'hf, which is what is pushed', fix)
    check_push(name)


def push_export(folder: pathlib.Path, name: str, *, private: bool) -> None:
    """Pushes WORKDIR/export/hf, if there is a name to push it to."""
    if name and is_primary():
        print(f'pushed to {push(folder / "export" / "hf", name, private=private)}')


def exported_model(folder: pathlib.Path) -> pathlib.Path | None:
    """The export of a workdir that a model can be read from again, if there is one."""
    found = (folder / 'export' / name for name in ('hf', 'orbax', 'google'))
    return next((path for path in found if path.is_dir()), None)
