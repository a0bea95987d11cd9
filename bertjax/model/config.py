"""What a BERT is made of: one frozen record, the named sizes, and what they cost in parameters and FLOPs."""

import dataclasses
import enum
from typing import Any

from bertjax.config.ranges import MANY, Range, number, one_of, whole
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
    """What a field of BertConfig decides. Resuming, fine-tuning, evaluation and export go by it."""

    ARCHITECTURE = 'shape, dtype or meaning of the parameters: always as in the checkpoint'
    LAYOUT = 'the tree that holds the same parameters: as in the checkpoint, but free for a run that starts from one'
    TRAINING = 'what training makes of the parameters: may change until the run is finished'
    EXECUTION = 'how the same function is computed: may change at any time'


# What follows from a kind for config.model.
_POLICIES = {
    FieldKind.ARCHITECTURE: (Change.STATE, Trained.RUN),
    FieldKind.LAYOUT: (Change.STATE, Trained.RUN),
    FieldKind.TRAINING: (Change.TRAINING, Trained.RUN),
    FieldKind.EXECUTION: (Change.RUN, Trained.COMMAND_LINE),
}
_SHARE = number(0, 0.99)  # dropped; of more, next to nothing would be left


def _field(kind: FieldKind, default: Any, allowed: Range | None = None) -> Any:
    change, trained = _POLICIES[kind]
    return key(default, allowed, kind=kind, change=change, trained=trained)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape and behaviour of a BERT.

    Attributes:
      vocab_size: pieces of the tokenizer; the arrays have `padded_vocab_size` rows.
      num_layers: transformer blocks.
      width: of the hidden states.
      num_heads: attention heads; they divide `width`.
      mlp_dim: width inside a block's MLP.
      max_positions: longest sequence.
      num_segments: rows of the segment embedding; with 1 the segment ids are ignored (RoBERTa), with 0 there is none
        (DistilBERT).
      dropout: of embeddings and of each block's two outputs.
      attention_dropout: of attention probabilities.
      activation: 'gelu' (erf, as Hugging Face's checkpoints), 'gelu_tanh' (as google-research/bert) or 'relu'.
      pooler_activation: of the pooler, 'tanh' or 'relu' (as DistilBERT's classifiers).
      layer_norm_eps: inside the square root.
      init_stddev: of the truncated normal that kernels and embeddings are drawn from.
      pre_norm: normalise a block's inputs instead of its outputs, and once more after the last block.
      causal: left-to-right attention (the paper's LTR ablation).
      nsp: has the pooler and the head on sentence pairs (NSP or SOP).
      scan_layers: one compiled block run `num_layers` times, with stacked parameters, instead of as many copies.
      attention: what computes attention: an implementation by name, or 'auto', the first that supports the call
        (model/attention/select.py).
      remat: what the forward pass keeps for the backward pass: with 'none' everything; with 'elementwise' and 'dots'
        what the projections have made (attention scores and element-wise operations are computed again), with
        'elementwise' attention's result and sums in place of what goes into them; with 'full' only block inputs.
        'auto' is 'elementwise' on TPU and 'none' elsewhere.
      dtype: of computation; LayerNorm statistics, softmax and logits are float32 always.
      param_dtype: of storage.

    Raises:
      UserError: a value that cannot be.
    """

    vocab_size: int = _field(FieldKind.ARCHITECTURE, 30522, whole(1, 10_000_000))
    num_layers: int = _field(FieldKind.ARCHITECTURE, 12, whole(1, 10_000))
    width: int = _field(FieldKind.ARCHITECTURE, 768, whole(1, 2**17))
    num_heads: int = _field(FieldKind.ARCHITECTURE, 12, whole(1, 2**17))
    mlp_dim: int = _field(FieldKind.ARCHITECTURE, 3072, whole(1, MANY))
    max_positions: int = _field(FieldKind.ARCHITECTURE, 512, whole(1, MANY))
    num_segments: int = _field(FieldKind.ARCHITECTURE, 2, whole(0, MANY))
    dropout: float = _field(FieldKind.TRAINING, 0.1, _SHARE)
    attention_dropout: float = _field(FieldKind.TRAINING, 0.1, _SHARE)
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
            fix = 'set config.model.num_heads to such a number'
            raise UserError('config.model.num_heads', str(self.num_heads), f'a divisor of width {self.width}', fix)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding: the next multiple of 128, so that meshes and vector units divide it."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads


def fields_of(*kinds: FieldKind) -> dict[str, Any]:
    """The fields of BertConfig that decide one of `kinds`: {name: default}, in their order."""
    return {field.name: field.default for field in dataclasses.fields(BertConfig) if field.metadata['kind'] in kinds}


def _dims(num_layers: int, width: int, num_heads: int) -> dict[str, int]:
    return {'num_layers': num_layers, 'width': width, 'num_heads': num_heads, 'mlp_dim': 4 * width}


# google-research/bert's README (24 smaller models) and the paper's section 3; the lXX names are the rows of the
# paper's Table 6 that are not base or large, and TinyBERT's (arXiv 1909.10351, section 4.1).
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
    """Number of parameters as transformers counts them: without the rows that pad the vocabulary."""
    D, F, V = config.width, config.mlp_dim, config.vocab_size
    norm = 2 * D
    embeddings = (V + config.max_positions + config.num_segments) * D + norm
    block = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * norm
    mlm = (D * D + D) + norm + V  # the output embedding is the input embedding
    pair = (D * D + D) + (2 * D + 2) if config.nsp else 0
    return embeddings + config.num_layers * block + (norm if config.pre_norm else 0) + mlm + pair


def train_flops_per_sequence(config: BertConfig, seq_len: int, predictions: int) -> float:
    """Floating point operations of one training step, forward and backward, per sequence.

    6·12·L·D²·S + 12·L·D·S² + 6·P·(D² + D·V), for an MLP of 4 D (12 D² = 4 D² + 2 D F): the matrix products alone.
    Recomputation and the padding of the vocabulary do not count.
    """
    D, S = config.width, seq_len
    projections = 6 * config.num_layers * (4 * D * D + 2 * D * config.mlp_dim) * S
    attention = 12 * config.num_layers * D * S * S
    head = 6 * predictions * (D * D + D * config.vocab_size)
    return float(projections + attention + head)
