"""The configuration of a BERT, the named sizes, and their parameter and FLOP counts."""

import dataclasses
import enum
from typing import Any

from bertjax.config.ranges import MANY, Range, integer, number, one_of
from bertjax.config.schema import Change, Trained, check_fields, key
from bertjax.errors import UserError

GATED_MLPS = ('geglu', 'swiglu')
# 'auto' and the names of the implementations in model/attention/select.py.
ATTENTION = ('auto', 'fused_tpu', 'blocks_tpu', 'flash_tpu', 'cudnn', 'fused_gpu', 'by_head_cpu', 'dot_product')
DTYPES = ('float32', 'bfloat16')
VOCABULARY_MULTIPLE = 128


# The values that BERT, RoBERTa and DistilBERT use; see `modern_fields`.
_CLASSIC = {
    'mlp': ('gelu', 'gelu_tanh', 'relu'),
    'norm': ('layernorm',),
    'projection_bias': (True,),
    'norm_bias': (True,),
    'pre_norm': (False,),
    'qk_norm': (False,),
    'position': ('learned',),
    'attention_window': (0,),
    'pooler': ('tanh', 'relu'),
    'pooling': ('cls',),
    'tie_embeddings': (True,),
}


class FieldKind(enum.Enum):
    """The effect of a BertConfig field, which determines when the value of the field may change."""

    ARCHITECTURE = 'shape, dtype, initial values or meaning of the parameters: a resumed run keeps the value'
    LAYOUT = 'tree structure of the parameters: a resumed run keeps the value; a run with config.init may change it'
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
    """Shape and behavior of a BERT.

    Attributes:
      vocab_size: Number of pieces in the tokenizer. The token embedding has `padded_vocab_size` rows.
      num_layers: Number of transformer blocks.
      width: Width of the hidden states.
      num_heads: Number of attention heads, a divisor of `width`.
      mlp_dim: Width of the hidden layer of a block's MLP.
      max_positions: Maximum sequence length in tokens.
      num_segments: Rows of the segment embedding. With 1 the segment ids are ignored (RoBERTa); with 0 there is no
        segment embedding (DistilBERT).
      dropout: Dropout rate of the embeddings, the outputs of attention and MLP, and the input of a task's head.
      dropout_sites: 'all', or 'attention_output' for dropout of the attention's output only (ModernBERT).
      attention_dropout: Dropout rate of the attention probabilities.
      mlp: The MLP of a block. 'gelu' (erf, as in Hugging Face's checkpoints), 'gelu_tanh' (as in google-research/bert),
        'relu' and 'relu2' (ReLU squared) are two projections with this activation between them. 'geglu' and 'swiglu'
        multiply one projection of the input by the GELU or SiLU of another (arXiv 2002.05202). The MLM head uses the
        same activation.
      norm: 'layernorm', or 'rmsnorm', which subtracts no mean (arXiv 1910.07467).
      layer_norm_eps: Number added to the variance in LayerNorm, and to the mean square in RMSNorm.
      projection_bias: Whether the encoder's projections, the MLM head's transform and a 'transform' pooler have a bias.
      norm_bias: Whether the norms have a bias.
      pre_norm: Whether to normalize the encoder's output and the inputs of attention and MLP, instead of the residual
        sums.
      first_attention_norm: Whether `pre_norm` also normalizes the input of the first block's attention. ModernBERT does
        not, because the embeddings are already normalized.
      qk_norm: Whether to normalize the queries and keys of each head separately, before the scores (arXiv 2302.05442).
      position: 'learned', a table of `max_positions` rows, or 'rope', rotary embeddings (model/rotary.py).
      rope_theta: The base of the rotation's frequencies in layers that attend to all positions.
      rope_local_theta: The base of the rotation's frequencies in layers with an attention window.
      attention_window: Width of the window of local attention: a token attends to `attention_window` // 2 positions on
        each side. 0 for no window.
      global_every: Layers whose index is a multiple of this number attend to all positions, in spite of
        `attention_window`. 0 for no such layers.
      pooler: The layer between encoder and classifier. 'tanh' (BERT) and 'relu' (DistilBERT's classifiers) are a
        projection with this activation. 'transform' (ModernBERT) has the layers of the MLM head except the last
        projection, and starts from their weights. The heads for tokens and spans have it too.
      pooling: The input of the pooler: 'cls', the state of [CLS], or 'mean', the mean state of all tokens.
      tie_embeddings: Whether to use the token embedding as the last projection of the MLM head.
      init: The initial weights. 'bert' draws all weights from one distribution. 'megatron' divides the standard
        deviation of projections into the residual stream by the square root of 2 · `num_layers` (arXiv 1909.08053).
        'zero_output' starts these projections at zero.
      init_stddev: Standard deviation of initial kernels and embeddings, before truncation.
      causal: Whether to use left-to-right attention (the paper's LTR ablation).
      shifted_predictions: Whether the MLM head predicts each token from the state of the position before it, so that
        one head predicts both masked and next tokens (GPT-BERT, arXiv 2410.24159).
      nsp: Whether to include the pooler and the head for sentence pairs (NSP or SOP).
      scan_layers: Whether to compile one block and run it `num_layers` times with stacked parameters, instead of
        compiling `num_layers` blocks.
      attention: Name of an implementation in model/attention/select.py, or 'auto' for the first that supports the call.
      remat: The values that the forward pass saves for the backward pass. 'none' saves all. 'dots' saves the outputs of
        the projections and recomputes attention scores and element-wise operations. 'elementwise' is like 'dots', but
        also saves attention's output, and saves residual sums instead of their summands. 'full' saves only the inputs
        of blocks. 'auto' is 'elementwise' on TPU and 'none' elsewhere.
      dtype: Dtype of the computation. LayerNorm statistics, softmax and logits are always float32.
      param_dtype: Dtype of the stored parameters.

    Raises:
      UserError: A value is outside its range, `num_heads` does not divide `width`, or two values exclude each other.
    """

    vocab_size: int = _field(FieldKind.ARCHITECTURE, 30522, integer(1, 10_000_000))
    num_layers: int = _field(FieldKind.ARCHITECTURE, 12, integer(1, 10_000))
    width: int = _field(FieldKind.ARCHITECTURE, 768, integer(1, 2**17))
    num_heads: int = _field(FieldKind.ARCHITECTURE, 12, integer(1, 2**17))
    mlp_dim: int = _field(FieldKind.ARCHITECTURE, 3072, integer(1, MANY))
    max_positions: int = _field(FieldKind.ARCHITECTURE, 512, integer(1, MANY))
    num_segments: int = _field(FieldKind.ARCHITECTURE, 2, integer(0, MANY))
    dropout: float = _field(FieldKind.TRAINING, 0.1, _DROPOUT_RANGE)
    dropout_sites: str = _field(FieldKind.TRAINING, 'all', one_of(('all', 'attention_output')))
    attention_dropout: float = _field(FieldKind.TRAINING, 0.1, _DROPOUT_RANGE)
    mlp: str = _field(FieldKind.ARCHITECTURE, 'gelu', one_of(('gelu', 'gelu_tanh', 'relu', 'relu2', *GATED_MLPS)))
    norm: str = _field(FieldKind.ARCHITECTURE, 'layernorm', one_of(('layernorm', 'rmsnorm')))
    layer_norm_eps: float = _field(FieldKind.ARCHITECTURE, 1e-12, number(1e-20, 1))
    projection_bias: bool = _field(FieldKind.ARCHITECTURE, True)
    norm_bias: bool = _field(FieldKind.ARCHITECTURE, True)
    pre_norm: bool = _field(FieldKind.ARCHITECTURE, False)
    first_attention_norm: bool = _field(FieldKind.ARCHITECTURE, True)
    qk_norm: bool = _field(FieldKind.ARCHITECTURE, False)
    position: str = _field(FieldKind.ARCHITECTURE, 'learned', one_of(('learned', 'rope')))
    rope_theta: float = _field(FieldKind.ARCHITECTURE, 10_000.0, number(1, 1e12))
    rope_local_theta: float = _field(FieldKind.ARCHITECTURE, 10_000.0, number(1, 1e12))
    attention_window: int = _field(FieldKind.ARCHITECTURE, 0, integer(0, MANY))
    global_every: int = _field(FieldKind.ARCHITECTURE, 3, integer(0, 10_000))
    pooler: str = _field(FieldKind.ARCHITECTURE, 'tanh', one_of(('tanh', 'relu', 'transform')))
    pooling: str = _field(FieldKind.ARCHITECTURE, 'cls', one_of(('cls', 'mean')))
    tie_embeddings: bool = _field(FieldKind.ARCHITECTURE, True)
    init: str = _field(FieldKind.ARCHITECTURE, 'bert', one_of(('bert', 'megatron', 'zero_output')))
    init_stddev: float = _field(FieldKind.ARCHITECTURE, 0.02, number(1e-6, 10))
    causal: bool = _field(FieldKind.ARCHITECTURE, False)
    shifted_predictions: bool = _field(FieldKind.ARCHITECTURE, False)
    nsp: bool = _field(FieldKind.ARCHITECTURE, True)
    scan_layers: bool = _field(FieldKind.LAYOUT, True)
    attention: str = _field(FieldKind.EXECUTION, 'auto', one_of(ATTENTION))
    remat: str = _field(FieldKind.EXECUTION, 'auto', one_of(('auto', 'none', 'elementwise', 'full', 'dots')))
    dtype: str = _field(FieldKind.EXECUTION, 'float32', one_of(DTYPES))
    param_dtype: str = _field(FieldKind.ARCHITECTURE, 'float32', one_of(DTYPES))

    def __post_init__(self):
        check_fields(self, 'model')
        if self.width % self.num_heads:
            fix = 'set config.model.num_heads to a divisor of config.model.width'
            raise UserError('config.model.num_heads', str(self.num_heads), f'a divisor of width {self.width}', fix)
        for name, value, requirement, is_met in (
            ('first_attention_norm', False, 'pre_norm=True', self.pre_norm),
            ('pooler', 'transform', 'config.pairs.mode=doc_sentences', not self.nsp),
            ('position', 'rope', 'an even width / num_heads', self.head_dim % 2 == 0),
        ):
            if getattr(self, name) == value and not is_met:
                fix = f'change config.model.{name} or use {requirement}'
                raise UserError(f'config.model.{name}', repr(value), f'another value, or {requirement}', fix)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding: `vocab_size` rounded up to a multiple of 128, for meshes and vector units."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads

    @property
    def dropout_elsewhere(self) -> float:
        """The dropout rate of the embeddings, the MLP outputs and the input of a task's head."""
        return self.dropout if self.dropout_sites == 'all' else 0.0

    @property
    def modern_fields(self) -> tuple[str, ...]:
        """The names of the fields whose values are not in `_CLASSIC`."""
        return tuple(name for name, values in _CLASSIC.items() if getattr(self, name) not in values)

    @property
    def layers_alike(self) -> bool:
        """Whether all layers compute the same function of their parameters and inputs; False with any window."""
        return self.first_attention_norm and not self.attention_window

    def attends_globally(self, layer: Any) -> Any:
        """Returns whether the layer with this index (an int or a JAX scalar) attends to all positions."""
        if not self.attention_window:
            return True
        return layer % self.global_every == 0 if self.global_every else False


def fields_of(*kinds: FieldKind) -> dict[str, Any]:
    """Returns the BertConfig fields of these kinds: {name: default}, in the order of declaration."""
    return {field.name: field.default for field in dataclasses.fields(BertConfig) if field.metadata['kind'] in kinds}


def _sizes(rows: dict[str, tuple[int, int, int, int]]) -> dict[str, dict[str, int]]:
    keys = ('num_layers', 'width', 'mlp_dim', 'num_heads')
    return {name: dict(zip(keys, row, strict=True)) for name, row in rows.items()}


# Sources: the README of google-research/bert ("24 smaller BERT models") and section 3 of the BERT paper. The names with
# numbers are the other rows of this paper's Table 6, and TinyBERT's 4-layer student (arXiv 1909.10351, section 4.1).
SIZES = _sizes({
    'tiny': (2, 128, 512, 2),
    'mini': (4, 256, 1024, 4),
    'small': (4, 512, 2048, 8),
    'medium': (8, 512, 2048, 8),
    'base': (12, 768, 3072, 12),
    'large': (24, 1024, 4096, 16),
    'l3_d768_h12': (3, 768, 3072, 12),
    'l6_d768_h3': (6, 768, 3072, 3),
    'l6_d768_h12': (6, 768, 3072, 12),
    'l12_d1024_h16': (12, 1024, 4096, 16),
    'l4_d312_h12': (4, 312, 1200, 12),
})  # fmt: skip
# ModernBERT (arXiv 2412.13663, table 4): base is '150m' and large '400m'; the others are Ettin's (arXiv 2507.11412).
MODERN_SIZES = _sizes({
    '17m': (7, 256, 384, 4),
    '32m': (10, 384, 576, 6),
    '68m': (19, 512, 768, 8),
    '150m': (22, 768, 1152, 12),
    '400m': (28, 1024, 2624, 16),
    '1b': (28, 1792, 3840, 28),
})  # fmt: skip
# The fields in which ModernBERT differs from BERT, besides its sizes and `nsp`, which config.pairs.mode decides. In
# ModernBERT's paper, `rope_theta` is 10,000 until training continues with rows of 8,192 tokens.
MODERN_FORM: dict[str, Any] = {
    'max_positions': 8192, 'num_segments': 0, 'dropout_sites': 'attention_output', 'attention_dropout': 0.0,
    'mlp': 'geglu', 'layer_norm_eps': 1e-5, 'projection_bias': False, 'norm_bias': False, 'pre_norm': True,
    'first_attention_norm': False, 'position': 'rope', 'rope_theta': 160_000.0, 'attention_window': 128,
    'pooler': 'transform', 'pooling': 'mean', 'init': 'megatron',
}  # fmt: skip


def parameter_count(config: BertConfig) -> int:
    """Counts the parameters of encoder and pre-training heads, without the padding rows of the vocabulary."""
    D, F, V, L = config.width, config.mlp_dim, config.vocab_size, config.num_layers
    norms = 1 + config.norm_bias
    norm = norms * D

    def projection(inputs: int, outputs: int) -> int:
        return inputs * outputs + config.projection_bias * outputs

    positions = config.max_positions if config.position == 'learned' else 0
    embeddings = (V + positions + config.num_segments) * D + norm
    mlp = (2 if config.mlp in GATED_MLPS else 1) * projection(D, F) + projection(F, D)
    block = 4 * projection(D, D) + mlp + 2 * norm + 2 * config.qk_norm * norms * config.head_dim
    ends = (config.pre_norm - (not config.first_attention_norm)) * norm  # plus final_norm, minus an attention_norm
    mlm = projection(D, D) + norm + V + (0 if config.tie_embeddings else V * D)
    pair = (D * D + D) + (2 * D + 2) if config.nsp else 0
    return embeddings + L * block + ends + mlm + pair


def inner_parameters(config: BertConfig) -> int:
    """Returns the number of parameters in the matrices of all blocks: L·(4·D² + 2·D·F), or 3·D·F for a gated MLP."""
    D, matrices = config.width, 3 if config.mlp in GATED_MLPS else 2
    return config.num_layers * (4 * D * D + matrices * D * config.mlp_dim)


def train_flops_per_sequence(config: BertConfig, seq_len: int, predictions: int) -> float:
    """Counts the floating point operations of a training step, forward and backward, per sequence.

    The formula counts the matrix products: 6·L·(4·D² + 2·D·F)·S + 12·L·D·S² + 6·P·(D² + D·V) for L layers of width D,
    an MLP of width F, S positions, P predictions and V pieces. A gated MLP has 3·D·F instead of 2·D·F. A layer with a
    window of W < S positions has S·W instead of S². Recomputation and the padding of the vocabulary do not count.
    """
    D, S = config.width, seq_len
    projections = 6 * inner_parameters(config) * S
    visible = [S if config.attends_globally(i) else min(S, config.attention_window) for i in range(config.num_layers)]
    attention = 12 * sum(visible) * D * S
    head = 6 * predictions * (D * D + D * config.vocab_size)
    return float(projections + attention + head)
