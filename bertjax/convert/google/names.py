"""Converts the variable names of google-research/bert to those of transformers and back.

The names are from its modeling.py, run_pretraining.py, run_classifier.py and run_squad.py. Every `kernel` is the
transpose of PyTorch's weight; `output_weights` are not transposed.
"""

import re

import numpy as np

# {the prefix of a head's variables in a task's script: (transformers' class, its projection)}.
HEADS = {
    '': ('BertForSequenceClassification', 'classifier'),
    'cls/squad/': ('BertForQuestionAnswering', 'qa_outputs'),
}
_LAST = {'kernel': 'weight', 'gamma': 'weight', 'beta': 'bias'}
_WHOLE = {
    'bert/embeddings/word_embeddings': 'bert.embeddings.word_embeddings.weight',
    'bert/embeddings/position_embeddings': 'bert.embeddings.position_embeddings.weight',
    'bert/embeddings/token_type_embeddings': 'bert.embeddings.token_type_embeddings.weight',
    'cls/predictions/output_bias': 'cls.predictions.bias',
    'cls/seq_relationship/output_weights': 'cls.seq_relationship.weight',
    'cls/seq_relationship/output_bias': 'cls.seq_relationship.bias',
    **{f'{ours}output_weights': f'{theirs}.weight' for ours, (_, theirs) in HEADS.items()},
    **{f'{ours}output_bias': f'{theirs}.bias' for ours, (_, theirs) in HEADS.items()},
}
_WHOLE_BACK = {theirs: ours for ours, theirs in _WHOLE.items()}
# The variables of optimisers, including their step counts.
_SLOT = re.compile(r'(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?|global_step|beta[12]_power)')


def is_slot(name: str) -> bool:
    """Returns whether a variable belongs to the optimiser and not to the model."""
    return _SLOT.fullmatch(name) is not None


def from_google(name: str) -> str:
    """Returns transformers' name of a variable; an unknown name only gets dots instead of slashes."""
    if name in _WHOLE:
        return _WHOLE[name]
    *path, last = re.sub(r'(^|/)layer_(\d+)/', r'\1layer/\2/', name).split('/')
    return '.'.join([*path, _LAST.get(last, last)])


def to_google(name: str) -> str:
    """Returns the variable's name of a tensor of transformers: the inverse of `from_google`."""
    if name in _WHOLE_BACK:
        return _WHOLE_BACK[name]
    *path, last = re.sub(r'\.layer\.(\d+)\.', r'.layer_\1.', name).split('.')
    if last == 'weight':
        last = 'gamma' if path[-1] == 'LayerNorm' else 'kernel'
    elif path[-1] == 'LayerNorm':
        last = 'beta'
    return '/'.join([*path, last])


def transpose_kernel(name: str, x: np.ndarray) -> np.ndarray:
    """Returns a variable in the other program's layout: kernels are transposed, other variables are unchanged."""
    return x.T if name.endswith('/kernel') else x
