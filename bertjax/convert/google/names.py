"""Converts variable names of google-research/bert to names of transformers and back.

The names come from modeling.py, run_pretraining.py, run_classifier.py and run_squad.py of google-research/bert. Each
`kernel` is the transpose of PyTorch's weight. `output_weights` are not transposed.
"""

import re

import numpy as np

# {prefix of the variables of a task's head: (class of transformers, name of its projection)}.
HEADS = {
    '': ('BertForSequenceClassification', 'classifier'),
    'cls/squad/': ('BertForQuestionAnswering', 'qa_outputs'),
}
# The order of the outputs of MNLI and XNLI in run_classifier.py. bertjax and the GLUE of `datasets` have another order.
MNLI_LABELS = ('contradiction', 'entailment', 'neutral')
_LAST_COMPONENT = {'kernel': 'weight', 'gamma': 'weight', 'beta': 'bias'}
_IRREGULAR = {
    'bert/embeddings/word_embeddings': 'bert.embeddings.word_embeddings.weight',
    'bert/embeddings/position_embeddings': 'bert.embeddings.position_embeddings.weight',
    'bert/embeddings/token_type_embeddings': 'bert.embeddings.token_type_embeddings.weight',
    'cls/predictions/output_bias': 'cls.predictions.bias',
    'cls/seq_relationship/output_weights': 'cls.seq_relationship.weight',
    'cls/seq_relationship/output_bias': 'cls.seq_relationship.bias',
    **{f'{ours}output_weights': f'{theirs}.weight' for ours, (_, theirs) in HEADS.items()},
    **{f'{ours}output_bias': f'{theirs}.bias' for ours, (_, theirs) in HEADS.items()},
}
_IRREGULAR_INVERSE = {theirs: ours for ours, theirs in _IRREGULAR.items()}
# The variables of optimizers, including step counters.
_SLOT = re.compile(r'(.*/)?(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?|global_step|beta[12]_power)')


def is_slot(name: str) -> bool:
    """Returns whether a variable belongs to the optimizer and not to the model."""
    return _SLOT.fullmatch(name) is not None


def from_google(name: str) -> str:
    """Converts a variable name to the name of the tensor in transformers. The same rules apply to unknown names."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    *path, last = re.sub(r'(^|/)layer_(\d+)/', r'\1layer/\2/', name).split('/')
    return '.'.join([*path, _LAST_COMPONENT.get(last, last)])


def to_google(name: str) -> str:
    """Converts the name of a tensor in transformers to a variable name. This is the inverse of `from_google`."""
    if name in _IRREGULAR_INVERSE:
        return _IRREGULAR_INVERSE[name]
    *path, last = re.sub(r'\.layer\.(\d+)\.', r'.layer_\1.', name).split('.')
    if last == 'weight':
        last = 'gamma' if path[-1] == 'LayerNorm' else 'kernel'
    elif path[-1] == 'LayerNorm':
        last = 'beta'
    return '/'.join([*path, last])


def transpose_kernel(name: str, x: np.ndarray) -> np.ndarray:
    """Transposes a kernel, for both directions of the conversion. Returns other variables unchanged."""
    return x.T if name.endswith('/kernel') else x
