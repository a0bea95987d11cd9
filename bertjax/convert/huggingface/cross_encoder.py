"""Reads and writes the files that turn a transformers directory into a CrossEncoder of sentence-transformers.

A CrossEncoder scores pairs of texts: it is a model for sequence classification with an activation. Only models with one
output are read. Source: sentence-transformers 2 to 6 (cross_encoder/model.py and base/modules/transformer.py).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.config.ranges import format_value
from bertjax.convert.huggingface.sentence_transformers import (
    ENCODER,
    SETTINGS,
    json_files,
    read_max_length,
    read_settings,
)
from bertjax.errors import UserError

# {activation: its function from logits to scores}.
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    'identity': lambda x: x,
    'sigmoid': lambda x: np.exp(-np.logaddexp(0, -x)),  # never overflows
}
CLASSES = {'identity': 'torch.nn.modules.linear.Identity', 'sigmoid': 'torch.nn.modules.activation.Sigmoid'}
CROSS_ENCODER = 'CrossEncoder'  # the model_type in SETTINGS


class CrossEncoder(NamedTuple):
    """The settings of a CrossEncoder with one output."""

    max_length: int  # the number of tokens to which longer pairs are truncated; 0 if the folder does not define it
    activation: str  # the function from logits to scores, a key of ACTIVATIONS


def read_cross_encoder(directory: epath.PathLike) -> CrossEncoder | None:
    """Reads the settings of a CrossEncoder. Returns None if the folder is not a CrossEncoder with one output.

    Raises a UserError for an unknown activation, a default prompt, an invalid length or a damaged file.
    """
    folder = epath.Path(directory)
    config, settings = read_settings(folder / 'config.json'), read_settings(folder / SETTINGS)
    older = config.get('sentence_transformers')  # an object in versions 4 and 5; absent before
    older = older if isinstance(older, dict) else {'activation_fn': config.get('sbert_ce_default_activation_function')}
    is_marked = settings.get('model_type') == CROSS_ENCODER or older.get('activation_fn')
    labels = config.get('id2label')  # transformers assumes two labels if there are no names
    count = config.get('num_labels') or (len(labels) if labels and isinstance(labels, dict) else 2)
    if not is_marked or count != 1:
        return None
    name = settings.get('activation_fn') or older.get('activation_fn') or 'Sigmoid'  # sentence-transformers' default
    activation = str(name).rpartition('.')[2].lower()
    if activation not in ACTIVATIONS:
        fix = 'change the activation in the files of this folder: the logits stay the same'
        raise UserError(str(folder), f'the activation {format_value(name)}', 'Identity or Sigmoid', fix)
    if settings.get('default_prompt_name'):
        fix = 'add the prompt to the queries, and remove default_prompt_name'
        raise UserError(str(folder / SETTINGS), 'a default prompt', 'a CrossEncoder without prompts', fix)
    return CrossEncoder(read_max_length(folder), activation)


def cross_encoder_files(settings: CrossEncoder) -> dict[str, bytes]:
    """Returns the files that a CrossEncoder adds to the files of transformers: {name: content}."""
    contents = {
        ENCODER: {
            'max_seq_length': settings.max_length,
            'transformer_task': 'sequence-classification',
            'modality_config': {'text': {'method': 'forward', 'method_output_name': 'logits'}},
            'module_output_name': 'scores',
        },
        SETTINGS: {'model_type': CROSS_ENCODER, 'activation_fn': CLASSES[settings.activation], 'prompts': {}},
    }
    return json_files([('', 'models.Transformer')], contents)
