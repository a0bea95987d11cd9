"""The model of a reranker: a classifier of sentence pairs whose single output is the score of a query and a text."""

from bertjax.convert.heads import Head
from bertjax.model.heads import BertForMultipleChoice, BertForTask


class BertForReranking(BertForMultipleChoice):
    """Scores pairs of a query and a text."""

    smallest_inputs = BertForTask.smallest_inputs


RERANKING = Head(
    BertForReranking,
    architecture='BertForSequenceClassification',
    pipeline='text-ranking',
    projection='classifier',
    pools_cls=True,
)
