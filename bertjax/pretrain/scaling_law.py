"""The expected held-out loss of a model, as a function of its size and of the text that it is trained on.

`python benchmarks/ladder_report.py` fits the constants to docs/results/scaling.json: 17 runs of `budget.py` or of
similar recipes, with 0.4 to 7.4 million parameters and 19 to 123 million positions. The mean error is 0.009 bits per
byte, and the largest 0.016. Two runs are not among the 17. For one with 38 million parameters, the law predicts 0.79
bits per byte, and 0.777 were measured (docs/results/h200.json). For one with 1.3 million, made after the fit, it
predicts 1.244, and 1.245 were measured (docs/results/budget-60m.json).
"""

FLOOR, PARAMETERS_FACTOR, TOKENS_FACTOR = 0.498, 28.0, 55.1
PARAMETERS_EXPONENT, TOKENS_EXPONENT = 0.34, 0.28  # arXiv 2203.15556, equation 10
# {pieces of a WordPiece vocabulary: nats per piece for one bit per byte}, on the held-out text of the fit.
_NATS_PER_BIT = {8192: 2.7213, 16384: 3.0231}
# Shorter runs are above the law: 0.1 bits per byte for 3 layers of width 192 after 8 million positions.
_MIN_TOKENS = 15e6


def bits_per_byte(parameters: float, tokens: float) -> float:
    """Returns the expected held-out MLM loss in bits per byte, for English text and 15 % masks.

    The formula is equation 2 of arXiv 2203.15556. For `parameters`, see `inner_parameters`; `tokens` is the number
    of positions in training.
    """
    return FLOOR + PARAMETERS_FACTOR / parameters**PARAMETERS_EXPONENT + TOKENS_FACTOR / tokens**TOKENS_EXPONENT


def mlm_loss(parameters: float, tokens: float, vocab_size: int) -> float | None:
    """Returns the expected held-out MLM loss in nats per piece; see `bits_per_byte`.

    The result is None for a vocabulary or a number of positions that the runs of the fit do not cover.
    """
    factors = (factor for size, factor in _NATS_PER_BIT.items() if abs(vocab_size / size - 1) <= 0.05)
    factor = next(factors, None)
    return None if factor is None or tokens < _MIN_TOKENS else factor * bits_per_byte(parameters, tokens)
