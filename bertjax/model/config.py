"""The configuration of a BERT, the named sizes, and their parameter and FLOP counts."""

import dataclasses
import enum
from typing import Any

from bertjax.config.ranges import MANY, Range, integer, number, one_of
from bertjax.config.schema import Change, Trained, check_fields, key
from bertjax.errors import UserError

ACTIVATIONS = ('gelu', 'gelu_tanh', 'relu')
POOLER_ACTIVATIONS = ('tanh', 'relu')
# The implementations of model/attention/select.py.
ATTENTION = ('auto', 'fused_tpu', 'flash_tpu', 'cudnn', 'fused_gpu', 'by_head_cpu', 'dot_product')
REMAT = ('auto', 'none', 'elementwise', 'full', 'dots')
DTYPES = ('float32', 'bfloat16')
VOCABULARY_MULTIPLE = 128


class FieldKind(enum.Enum):
    """The effect of a BertConfig field. The rules for resuming, fine-tuning, evaluation and export follow from it."""

    ARCHITECTURE = 'shape, dtype or meaning of the parameters: always as in the checkpoint'
    LAYOUT = 'tree structure of the same parameters: as in the checkpoint, but free in a run that starts from one'
    TRAINING = 'effect of training on the parameters: may change until the run is finished'
    EXECUTION = 'way in which the same function is computed: may change at any time'


# The resume policies of the keys of config.model, by the kind of the field.
_POLICIES = {
    FieldKind.ARCHITECTURE: (Change.STATE, Trained.RUN),
    FieldKind.LAYOUT: (Change.STATE, Trained.RUN),
    FieldKind.TRAINING: (Change.TRAINING, Trained.RUN),
    FieldKind.EXECUTION: (Change.RUN, Trained.COMMAND_LINE),
}
_DROPOUT_RANGE = number(0, 0.99)  # a higher rate would leave almost no values


def _field(kind: FieldKind, default: Any, allowed: Range | None = None) -> Any:
    change, trained = _POLICIES[kind]
    return key(default, allowed, kind=kind, change=change, trained=trained)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape and behaviour of a BERT.

    Attributes:
      vocab_size: Number of pieces in the tokenizer. The arrays have `padded_vocab_size` rows.
      num_layers: Number of transformer blocks.
      width: Width of the hidden states.
      num_heads: Number of attention heads, a divisor of `width`.
      mlp_dim: Width of the hidden layer of a block's MLP.
      max_positions: Length of the longest sequence, in tokens.
      num_segments: Rows of the segment embedding. With 1 the segment ids are ignored (RoBERTa); with 0 there is no
        segment embedding (DistilBERT).
      dropout: Dropout rate of the embeddings and of both outputs of each block.
      attention_dropout: Dropout rate of the attention probabilities.
      activation: 'gelu' (erf, as in Hugging Face's checkpoints), 'gelu_tanh' (as in google-research/bert) or 'relu'.
      pooler_activation: 'tanh' or 'relu' (as in DistilBERT's classifiers).
      layer_norm_eps: Number added to the variance in LayerNorm.
      init_stddev: Standard deviation of the truncated normal that initialises kernels and embeddings.
      pre_norm: Whether to normalise the inputs of each block instead of its outputs, and to normalise after the last
        block.
      causal: Whether to use left-to-right attention (the paper's LTR ablation).
      nsp: Whether to include the pooler and the head for sentence pairs (NSP or SOP).
      scan_layers: Whether to compile one block and run it `num_layers` times with stacked parameters, instead of
        compiling `num_layers` blocks.
      attention: Name of the attention implementation, or 'auto' for the first that supports the call
        (model/attention/select.py).
      remat: Policy that selects the values that the forward pass saves for the backward pass. 'none' saves all. 'dots'
        saves the outputs of the projections and recomputes attention scores and element-wise operations. 'elementwise'
        recomputes the same values, but saves the output of attention and the residual sums instead of their inputs.
        'full' saves only the inputs of blocks. 'auto' is 'elementwise' on TPU and 'none' elsewhere.
      dtype: Dtype of the computation. LayerNorm statistics, softmax and logits are always float32.
      param_dtype: Dtype of the stored parameters.

    Raises:
      UserError: A value is outside its range, or `num_heads` does not divide `width`.
    """

    vocab_size: int = _field(FieldKind.ARCHITECTURE, 30522, integer(1, 10_000_000))
    num_layers: int = _field(FieldKind.ARCHITECTURE, 12, integer(1, 10_000))
    width: int = _field(FieldKind.ARCHITECTURE, 768, integer(1, 2**17))
    num_heads: int = _field(FieldKind.ARCHITECTURE, 12, integer(1, 2**17))
    mlp_dim: int = _field(FieldKind.ARCHITECTURE, 3072, integer(1, MANY))
    max_positions: int = _field(FieldKind.ARCHITECTURE, 512, integer(1, MANY))
    num_segments: int = _field(FieldKind.ARCHITECTURE, 2, integer(0, MANY))
    dropout: float = _field(FieldKind.TRAINING, 0.1, _DROPOUT_RANGE)
    attention_dropout: float = _field(FieldKind.TRAINING, 0.1, _DROPOUT_RANGE)
    activation: str = _field(FieldKind.ARCHITECTURE, 'gelu', one_of(ACTIVATIONS))
    pooler_activation: str = _field(FieldKind.ARCHITECTURE, 'tanh', one_of(POOLER_ACTIVATIONS))
    layer_norm_eps: float = _field(FieldKind.ARCHITECTURE, 1e-12, number(1e-20, 1))
    init_stddev: float = _field(FieldKind.ARCHITECTURE, 0.02, number(1e-6, 10))
    pre_norm: bool = _field(FieldKind.ARCHITECTURE, False)
    causal: bool = _field(FieldKind.ARCHITECTURE, False)
    nsp: bool = _field(FieldKind.ARCHITECTURE, True)
    scan_layers: bool = _field(FieldKind.LAYOUT, True)
    attention: str = _field(FieldKind.EXECUTION, 'auto', one_of(ATTENTION))
    remat: str = _field(FieldKind.EXECUTION, 'auto', one_of(REMAT))
    dtype: str = _field(FieldKind.EXECUTION, 'float32', one_of(DTYPES))
    param_dtype: str = _field(FieldKind.ARCHITECTURE, 'float32', one_of(DTYPES))

    def __post_init__(self):
        check_fields(self, 'model')
        if self.width % self.num_heads:
            raise UserError(
                'config.model.num_heads',
                found=str(self.num_heads),
                expected=f'a divisor of width {self.width}',
                fix='set config.model.num_heads to a divisor of config.model.width',
            )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding: `vocab_size` rounded up to a multiple of 128, for meshes and vector units."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads


def fields_of(*kinds: FieldKind) -> dict[str, Any]:
    """Returns the BertConfig fields of these kinds: {name: default}, in the order of declaration."""
    return {field.name: field.default for field in dataclasses.fields(BertConfig) if field.metadata['kind'] in kinds}


def _dims(num_layers: int, width: int, num_heads: int) -> dict[str, int]:
    return {'num_layers': num_layers, 'width': width, 'num_heads': num_heads, 'mlp_dim': 4 * width}


# Sources: the README of google-research/bert (24 smaller models) and section 3 of the paper. The lXX names are the
# other rows of the paper's Table 6, and TinyBERT's 4-layer student (arXiv 1909.10351, section 4.1).
SIZES: dict[str, dict[str, int]] = {
    'tiny': _dims(2, 128, 2),
    'mini': _dims(4, 256, 4),
    'small': _dims(4, 512, 8),
    'medium': _dims(8, 512, 8),
    'base': _dims(12, 768, 12),
    'large': _dims(24, 1024, 16),
    'l3_d768_h12': _dims(3, 768, 12),
    'l6_d768_h3': _dims(6, 768, 3),
    'l6_d768_h12': _dims(6, 768, 12),
    'l12_d1024_h16': _dims(12, 1024, 16),
    'l4_d312_h12': {**_dims(4, 312, 12), 'mlp_dim': 1200},
}


def parameter_count(config: BertConfig) -> int:
    """Counts the parameters as transformers does, without the padding rows of the vocabulary."""
    D, F, V = config.width, config.mlp_dim, config.vocab_size
    norm = 2 * D
    embeddings = (V + config.max_positions + config.num_segments) * D + norm
    block = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * norm
    mlm = (D * D + D) + norm + V  # the output embedding is the input embedding
    pair = (D * D + D) + (2 * D + 2) if config.nsp else 0
    return embeddings + config.num_layers * block + (norm if config.pre_norm else 0) + mlm + pair


def train_flops_per_sequence(config: BertConfig, seq_len: int, predictions: int) -> float:
    """Counts the floating point operations of a training step, forward and backward, per sequence.

    The formula counts the matrix products: 6·L·(4·D² + 2·D·F)·S + 12·L·D·S² + 6·P·(D² + D·V). The first term is
    6·12·L·D²·S for F = 4·D. Recomputation and the padding of the vocabulary do not count.
    """
    D, S = config.width, seq_len
    projections = 6 * config.num_layers * (4 * D * D + 2 * D * config.mlp_dim) * S
    attention = 12 * config.num_layers * D * S * S
    head = 6 * predictions * (D * D + D * config.vocab_size)
    return float(projections + attention + head)
