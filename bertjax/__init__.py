"""bertjax: pre-train BERT in JAX and take it to its tasks."""
