"""The content of an export, the input of the writers of all formats."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from etils import epath

from bertjax.convert.heads import TOKEN_CLASSIFICATION, Head
from bertjax.files.atomic import atomic_directory
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.text.special import to_json
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.tokenizer_json import WORD_PREFIX, set_prefix_space

_CELL = str.maketrans({'|': '\\|', '\n': ' '})  # for a cell of a table in Markdown
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, ''),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_ENVIRONMENT.filters['number'] = format
_ENVIRONMENT.filters['cell'] = lambda x: (f'{x:.6g}' if isinstance(x, float) else str(x)).translate(_CELL)


@dataclasses.dataclass(frozen=True)
class ExportContent:
    """A model to export, and the other content of the exported files.

    Attributes:
      module: The Flax module of the model, with its config.
      params: The parameters, on devices or on the host, without Linen's boxes. The layers are stacked if
        `config.scan_layers` is true. A pre-trained model may lack heads.
      tokenizer: The tokenizer, whose files are part of every format.
      card: Facts about the training for the model card, see `convert/huggingface/card.py`.
      about: The license, language, datasets and base_model, as in config.card. Empty values are omitted.
      figures: The metrics of a task's model by split.
      head: The head of a task's model; None for a pre-trained model.
      task: The task's fields of config.json, such as `id2label` with a name for each output; see `Task.huggingface`.
      extra_files: {relative path: content}, additional files in all formats.
      max_length: The number of tokens to which longer texts are truncated; 0 for the positions of the model.
      dtype: The dtype of the tensors in a Hugging Face directory: 'float32', 'float16' or 'bfloat16'.
      values: The config.json of the Hugging Face directory from which the model was read; empty for other models. An
        export to Hugging Face keeps the `model_type` in it, and all keys that the export does not set.
      files: Additional files of a Hugging Face directory, {relative path: content}. They replace files of the export
        except config.json and the tensors.
      embeddings: The module that computes vectors of texts. StableHLO and ONNX get a function of this module. None if
        there is no such module.
    """

    module: BertForPreTraining | BertForTask
    params: Any
    tokenizer: Tokenizer
    _: dataclasses.KW_ONLY
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, Mapping[str, float | None]] = dataclasses.field(default_factory=dict)
    head: Head | None = None
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extra_files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    max_length: int = 0
    dtype: str = 'float32'
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    embeddings: BertForTask | None = None

    @property
    def config(self) -> BertConfig:
        """The config of the model."""
        return self.module.config

    @property
    def model_max_length(self) -> int:
        """The maximum number of tokens of a text, in tokenizer_config.json."""
        return self.max_length or self.config.max_positions

    @property
    def projection(self) -> str:
        """The name that transformers gives to our linear layer `head`; '' for a pre-trained model."""
        return self.head.projection if self.head else ''

    @contextlib.contextmanager
    def stage(self, directory: epath.PathLike, *, for_others: bool = True) -> Iterator[epath.Path]:
        """Yields a temporary directory with the tokenizer and `extra_files`, which replaces `directory` on success.

        `for_others` says whether other programs than bertjax use the tokenizer.
        """
        with atomic_directory(directory) as staging:
            folder = epath.Path(staging)
            self.tokenizer.save(staging)
            path = folder / 'tokenizer_config.json'
            if path.exists():
                facts = json.loads(path.read_text()) | {'model_max_length': self.model_max_length}
                if for_others and self.head == TOKEN_CLASSIFICATION and self.tokenizer.word_prefix:
                    # The fine-tuning put a space before each word. transformers does so only with this setting.
                    settings = json.loads((folder / 'tokenizer.json').read_text())
                    if set_prefix_space(settings, True):
                        (folder / 'tokenizer.json').write_text(to_json(settings))
                        facts |= {'add_prefix_space': True, WORD_PREFIX: self.tokenizer.word_prefix}
                path.write_text(to_json(facts))
            write_files(folder, self.extra_files)
            yield folder


def write_files(folder: epath.Path, files: Mapping[str, bytes]) -> None:
    """Writes {relative path: content} into a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def render(template: str, **values: Any) -> str:
    """Returns the text of a README.md, made from a template of this folder."""
    return _ENVIRONMENT.get_template(template).render(values)
