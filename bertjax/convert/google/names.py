"""The names of google-research/bert, in transformers' form and back.

Its modeling.py, run_pretraining.py, run_classifier.py and run_squad.py give them. Every kernel of theirs is the
transpose of PyTorch's weight; `output_weights` are not.
"""

import re

import numpy as np

# What a task's script calls its head: transformers' class and projection.
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
# What optimisers keep beside the weights, and how many steps they took.
_SLOT = re.compile(r'(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?|global_step|beta[12]_power)')


def is_slot(name: str) -> bool:
    """Whether a variable belongs to the optimiser, and not to the model."""
    return _SLOT.fullmatch(name) is not None


def from_google(name: str) -> str:
    """transformers' name of a variable; of one that it does not know, the same with dots."""
    if name in _WHOLE:
        return _WHOLE[name]
    *path, last = re.sub(r'(^|/)layer_(\d+)/', r'\1layer/\2/', name).split('/')
    return '.'.join([*path, _LAST.get(last, last)])


def to_google(name: str) -> str:
    """The variable of one of transformers' tensors: the inverse of `from_google`."""
    if name in _WHOLE_BACK:
        return _WHOLE_BACK[name]
    *path, last = re.sub(r'\.layer\.(\d+)\.', r'.layer_\1.', name).split('.')
    if last == 'weight':
        last = 'gamma' if path[-1] == 'LayerNorm' else 'kernel'
    elif path[-1] == 'LayerNorm':
        last = 'beta'
    return '/'.join([*path, last])


def turned(name: str, x: np.ndarray) -> np.ndarray:
    """A variable in the other program's layout: a kernel transposed, anything else as it is."""
    return x.T if name.endswith('/kernel') else x
