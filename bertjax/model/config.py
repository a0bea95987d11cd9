"""What a BERT is made of: one frozen record, the named sizes, and what they cost."""

import dataclasses

from bertjax.errors import UserError

ACTIVATIONS = ('gelu', 'gelu_tanh', 'relu')
REMAT = ('none', 'full', 'dots')
DTYPES = ('float32', 'bfloat16')
VOCABULARY_MULTIPLE = 128


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
      num_segments: rows of the segment embedding; with 1 the segment ids are ignored (RoBERTa).
      dropout: of embeddings and of each block's two outputs.
      attention_dropout: of attention probabilities.
      activation: 'gelu' (erf, as Hugging Face's checkpoints), 'gelu_tanh' (as google-research/bert) or 'relu'.
      layer_norm_eps: inside the square root.
      init_stddev: of the truncated normal that draws kernels and embeddings.
      pre_norm: normalise a block's inputs instead of its outputs, and once more after the last block.
      causal: left-to-right attention (the paper's LTR ablation).
      nsp: has the pooler and the head on sentence pairs (NSP or SOP).
      scan_layers: one compiled block run `num_layers` times, with stacked parameters, instead of as many copies.
      remat: what the backward pass finds in memory: 'none' recomputes nothing, 'full' keeps block inputs only,
        'dots' keeps also the outputs of the projections (attention scores and everything element-wise is recomputed).
      dtype: of computation; LayerNorm statistics, softmax and logits are float32 always.
      param_dtype: of storage.

    Raises:
      UserError: a value that cannot be.
    """

    vocab_size: int = 30522
    num_layers: int = 12
    width: int = 768
    num_heads: int = 12
    mlp_dim: int = 3072
    max_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = 'gelu'
    layer_norm_eps: float = 1e-12
    init_stddev: float = 0.02
    pre_norm: bool = False
    causal: bool = False
    nsp: bool = True
    scan_layers: bool = True
    remat: str = 'none'
    dtype: str = 'float32'
    param_dtype: str = 'float32'

    def __post_init__(self):
        for name in ('vocab_size', 'num_layers', 'width', 'num_heads', 'mlp_dim', 'max_positions', 'num_segments'):
            value = getattr(self, name)
            _require(name, value, isinstance(value, int) and value >= 1, 'a whole number of at least 1')
        for name in ('dropout', 'attention_dropout'):
            value = getattr(self, name)
            _require(name, value, isinstance(value, int | float) and 0 <= value < 1, 'a share of at least 0, below 1')
        for name in ('layer_norm_eps', 'init_stddev'):
            value = getattr(self, name)
            _require(name, value, isinstance(value, int | float) and value > 0, 'a number above 0')
        for name, known in (('activation', ACTIVATIONS), ('remat', REMAT), ('dtype', DTYPES), ('param_dtype', DTYPES)):
            _require(name, getattr(self, name), getattr(self, name) in known, 'one of ' + ', '.join(known))
        _require('num_heads', self.num_heads, self.width % self.num_heads == 0, f'a divisor of width {self.width}')

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding: the next multiple of 128, so that meshes and vector units divide it."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads


def _require(name: str, value: object, fine: bool, expected: str) -> None:
    if not fine:
        raise UserError(f'config.model.{name}', repr(value), expected, f'set config.model.{name} to such a value')


def _dims(num_layers: int, width: int, num_heads: int) -> dict[str, int]:
    return {'num_layers': num_layers, 'width': width, 'num_heads': num_heads, 'mlp_dim': 4 * width}


# google-research/bert's README (24 smaller models) and the paper's section 3; the lXX names are the rows of the
# paper's Table 6 that are not base or large.
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
}


def config_of_size(name: str, **changes: object) -> BertConfig:
    """The BertConfig of a named size, with other fields as given.

    Raises:
      UserError: an unknown size, or a value that cannot be.
    """
    if name not in SIZES:
        raise UserError('config.model.size', repr(name), 'one of ' + ', '.join(SIZES), 'choose one of them')
    return BertConfig(**{**SIZES[name], **changes})


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
    Recomputation and the padding of the vocabulary earn no credit.
    """
    D, S = config.width, seq_len
    projections = 6 * config.num_layers * (4 * D * D + 2 * D * config.mlp_dim) * S
    attention = 12 * config.num_layers * D * S * S
    head = 6 * predictions * (D * D + D * config.vocab_size)
    return float(projections + attention + head)
