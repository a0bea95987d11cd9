"""The model of a reranker: the classifier of sentence pairs with one output, for each pair of a query and a text."""

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
