"""bertjax: pre-train BERT in JAX and take it to its tasks."""

__version__ = '0.1.0'
