"""The common kinds of task heads, with the equivalent classes of transformers.

A task with a special head defines the head in the folder of the task.
"""

import dataclasses

from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTask, BertForTokens


@dataclasses.dataclass(frozen=True)
class Head:
    """A kind of head. The attribute `head` of a task is a `Head`.

    Attributes:
      module: The Flax module of the whole model, including the encoder.
      per_token: The names of the outputs that have an entry for each token.
      architecture: The equivalent class of transformers; '' if there is none. A model without such a class cannot be
        exported to the Hugging Face format.
      pipeline: The pipeline tag on the hub; '' if there is none.
      projection: The name of our linear layer `head` in transformers. If the layer is a module of
        sentence-transformers, the name is FOLDER/linear.
      id2label: Whether `id2label` in the config.json of `architecture` has an entry for each output.
      pools_cls: Whether the head reads one pooled state, by default of [CLS] (see `BertConfig.pooling`).
      layers: The values of the module's field `layers` that transformers or sentence-transformers can represent.
      sentence_class: The class of sentence-transformers that loads the exported model; '' if `architecture` loads it.
    """

    module: type[BertForTask]
    per_token: tuple[str, ...] = ()
    architecture: str = ''
    pipeline: str = ''
    projection: str = ''
    id2label: bool = True
    pools_cls: bool = False
    layers: tuple[str, ...] = ('last',)
    sentence_class: str = ''

    @property
    def name(self) -> str:
        """The value of `architecture` in an Orbax model.json: this `architecture`, or the class name of `module`."""
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
