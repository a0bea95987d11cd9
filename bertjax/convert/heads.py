"""Kinds of task heads, and the equivalent classes of transformers, if there are any."""

import dataclasses

from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTask, BertForTokens


@dataclasses.dataclass(frozen=True)
class Head:
    """A kind of head. The attribute `head` of a task is a `Head`.

    This module defines the common heads. A task with a special head defines the head in the folder of the task.

    Attributes:
      module: The Flax module of the whole model, including the encoder.
      per_token: The names of the outputs that have an entry for each token. These outputs can be cut at the padding.
      architecture: The equivalent class of transformers. If there is none, it is '', and the model cannot be exported
        to the Hugging Face format.
      pipeline: The pipeline tag on the hub.
      projection: The name that the class of transformers gives to our linear layer `head`. If the layer is a module of
        sentence-transformers, the name begins with the folder of the module.
      id2label: Whether `id2label` in the config.json of `architecture` has an entry for each output.
      pools_cls: Whether the head reads only the first position.
      layers: The values of the module's field `layers` that transformers or sentence-transformers can represent.
    """

    module: type[BertForTask]
    per_token: tuple[str, ...] = ()
    architecture: str = ''
    pipeline: str = ''
    projection: str = ''
    id2label: bool = True
    pools_cls: bool = False
    layers: tuple[str, ...] = ('last',)

    @property
    def name(self) -> str:
        """The name that a saved model has in `architectures`: `architecture`, or else the class in bertjax."""
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
