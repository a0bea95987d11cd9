"""The heads of tasks and their counterparts in transformers: one record for each kind, the `head` of a task."""

import dataclasses

from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTask, BertForTokens


@dataclasses.dataclass(frozen=True)
class Head:
    """A kind of head. A task with a special head defines the record in its own folder; there is no central list.

    Attributes:
      module: Our class, encoder included.
      per_token: The outputs with a value for each token, whose padding can be cut off.
      architecture: The equivalent class of transformers; '' if there is none, and the model cannot be exported to
        Hugging Face.
      pipeline: The hub's pipeline tag.
      projection: The name of the module's linear layer `head` in the class of transformers.
      id2label: Whether `id2label` in the config.json of this class names, or at least counts, the outputs.
      pools_cls: Whether the head reads only the first position.
    """

    module: type[BertForTask]
    per_token: tuple[str, ...] = ()
    architecture: str = ''
    pipeline: str = ''
    projection: str = ''
    id2label: bool = True
    pools_cls: bool = False

    @property
    def name(self) -> str:
        """The class in a saved model's `architectures`: transformers' class, or ours if it has none."""
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
