"""The heads of tasks as other programs know them: one record for each kind, which a task names as its `head`."""

import dataclasses

from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTokens, TaskModel


@dataclasses.dataclass(frozen=True)
class Head:
    """A kind of head. A task with a head of its own defines the record in its folder; nothing else lists them.

    Attributes:
      module: our class, on the encoder.
      per_token: its outputs that have a value for each token, so that a row's padding can be cut off.
      architecture: transformers' class that computes the same; '' where there is none, so that no model with this head
        is exported to Hugging Face.
      pipeline: the hub's pipeline tag.
      projection: what that class calls the module's `head`, a linear layer.
      id2label: whether its config.json names the outputs, or at least counts them, by `id2label`.
      pools_cls: whether it reads the first position alone.
    """

    module: type[TaskModel]
    per_token: tuple[str, ...] = ()
    architecture: str = ''
    pipeline: str = ''
    projection: str = ''
    id2label: bool = True
    pools_cls: bool = False

    @property
    def name(self) -> str:
        """What a saved model's `architectures` says: transformers' class, or ours where it has none."""
        return self.architecture or self.module.__name__


SEQUENCE_CLASSIFICATION = Head(
    BertForClassification,
    architecture='BertForSequenceClassification',
    pipeline='text-classification',
    projection='classifier',
    pools_cls=True,
)
MULTIPLE_CHOICE = Head(
    BertForMultipleChoice,
    architecture='BertForMultipleChoice',
    pipeline='multiple-choice',
    projection='classifier',
    id2label=False,
    pools_cls=True,
)
TOKEN_CLASSIFICATION = Head(
    BertForTokens,
    per_token=('token_logits',),
    architecture='BertForTokenClassification',
    pipeline='token-classification',
    projection='classifier',
)
QUESTION_ANSWERING = Head(
    BertForSpans,
    per_token=('start_logits', 'end_logits'),
    architecture='BertForQuestionAnswering',
    pipeline='question-answering',
    projection='qa_outputs',
)
