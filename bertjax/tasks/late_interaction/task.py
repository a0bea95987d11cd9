"""Late interaction (ColBERT): training on pairs, hard negatives or a teacher's scores, and evaluation by MaxSim."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.ranges import MANY, integer, number, one_of
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.multi_vector import (
    PUNCTUATION,
    MultiVector,
    multi_vector_files,
    read_multi_vector,
    settings_as_options,
)
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.encoder import BertEncoder
from bertjax.model.heads import BertForTask, flatten_choices
from bertjax.model.layers import Projection
from bertjax.tasks.embedding.base import Predictions, Records, TextPairTask, distinct_texts, make_rankings
from bertjax.tasks.embedding.features import EncodedText, group_features, target_scores, text_features
from bertjax.tasks.embedding.files import Query
from bertjax.tasks.embedding.losses import normalize
from bertjax.tasks.exported import read_exported_task
from bertjax.tasks.late_interaction.max_sim import LOSSES, ROLES, build_objective, search
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.task import Outputs, option
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer

# The roles of tokens. Scores ignore skipped punctuation, and compare augmenting [MASK] tokens like ordinary tokens.
ORDINARY, SKIPPED, AUGMENTING = range(3)
# The options that the files of a saved model state.
ADOPTED_OPTIONS = ('query_len', 'dim', 'query_prompt', 'document_prompt', 'augment', 'attend', 'skip_punctuation')


class BertForLateInteraction(BertForTask):
    """Computes a vector for each token (arXiv 2004.12832, section 3.2).

    Attributes:
      outputs: The width of the vectors.
      attend: Whether tokens attend to augmenting [MASK] tokens.
    """

    outputs: int = 128
    attend: bool = False

    smallest_inputs = ((1, 1),) * 4

    def setup(self):
        self.encoder = BertEncoder(self.config, self.packing)
        self.head = Projection(self.config, (self.outputs,), ('embed',), ('classes',), ('classes',), use_bias=False)

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps ids, segments, mask and roles, int32 [B, S] or [B, C, S], to `token_vectors`, float32 [..., D].

        D is `outputs`. The vectors of padding and of skipped tokens are zero. All other vectors have length 1.
        """
        _, (ids, segments, mask, roles), dropout = flatten_choices(inputs, dropout)
        key_mask = None if self.attend else jnp.where(roles == AUGMENTING, 0, mask)
        hidden = self._hidden(ids, segments, mask, dropout, key_mask=key_mask)
        compared = (mask > 0) & (roles != SKIPPED)  # [B, S] or [B·C, S]
        vectors = jnp.where(compared[..., None], self.head(hidden).astype(jnp.float32), 0.0)
        return {'token_vectors': normalize(vectors).reshape(*inputs[0].shape, -1)}


LATE_INTERACTION = Head(
    BertForLateInteraction,
    per_token=('token_vectors',),
    architecture='BertModel',
    pipeline='sentence-similarity',
    projection='1_Dense/linear',
    id2label=False,
    sentence_class='MultiVectorEncoder',
)


@dataclasses.dataclass
class LateInteractionTask(TextPairTask):
    """Trains a model that maps each token to a vector.

    The score of a pair is MaxSim: the sum over the query's tokens of the highest cosine with a token of the document.

    The columns of a file are as in EmbeddingTask. Single texts are refused, and scored pairs are only evaluated.

    Attributes:
      seq_len: the maximum length S of a document in tokens, including [CLS] and [SEP].
      query_len: the maximum length of a query in tokens.
      dim: the width of the vectors.
      loss: the loss; 'auto' chooses 'kl' for a teacher's scores, else 'info_nce'.
      scale: the factor of the scores in 'info_nce'.
      query_prompt, document_prompt: the prefix that marks a query or a document. If its first word is a
        vocabulary piece, this word becomes one token.
      augment: whether queries are filled with [MASK] up to `query_len`.
      attend: whether tokens attend to the [MASK] of queries.
      skip_punctuation: whether scores ignore the punctuation of documents.
    """

    query_len: int = option(32, integer(4, MANY))
    dim: int = option(128, integer(1, MANY), affects='model')
    loss: str = option('auto', one_of(('auto', *LOSSES)))
    scale: float = option(1.0, number(0, 1e4, above=True))
    query_prompt: str = '[unused0] '
    document_prompt: str = '[unused1] '
    augment: bool = True
    attend: bool = False
    skip_punctuation: bool = True

    method, results = 'rerank', 'vectors of tokens, for scores of pairs of texts'
    head = LATE_INTERACTION
    losses = LOSSES
    pair_key = 'score'
    min_seq_len, default_name = 8, 'late interaction'

    def __post_init__(self):
        super().__post_init__()
        if self.augment and self.query_len > self.seq_len:
            found, expected = str(self.query_len), f'at most {self.seq_len}, config.seq_len'
            raise UserError('config.task.query_len', found, expected, 'raise config.seq_len')
        if self.attend and not self.augment:
            raise UserError('config.task.attend', 'True without augment', 'False', 'set config.task.augment')

    @property
    def objective(self) -> Objective:
        return build_objective(self._loss, self.query_len, **self._loss_options)

    @property
    def _settings(self) -> MultiVector:
        skiplist = PUNCTUATION if self.skip_punctuation else ()
        prompts, lengths = (self.query_prompt, self.document_prompt), (self.query_len, self.seq_len)
        return MultiVector(*prompts, *lengths, self.augment, self.attend, skiplist)

    def adopt(self, source: str) -> None:
        """See Task. If `source` is a late interaction model, the options must equal its settings, except `seq_len`."""
        if (theirs := read_multi_vector(source, MANY)) is not None:
            options = settings_as_options(source, theirs)
        elif exported := read_exported_task(source, 'late_interaction'):  # an Orbax export has only task.json
            options = vars(exported)
        else:
            return
        for name in ADOPTED_OPTIONS:
            if getattr(self, name) != options[name]:
                found = f'{getattr(self, name)!r} for {source}'
                raise UserError(f'config.task.{name}', found, f'{options[name]!r}, as in that model', 'set it')

    def features(self, records: Records, tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task. Without `training`, there is a row for each text of `distinct_texts`."""
        tokenization = Tokenization(tokenizer, self._settings)
        if training:
            groups = [record.texts for record in records]
            queries = iter(tokenization.queries([group[0] for group in groups]))
            documents = iter(tokenization.documents([text for group in groups for text in group[1:]]))
            sequences = (next(documents if i else queries) for group in groups for i in range(len(group)))
            return group_features(groups, target_scores(records, self.max_score), sequences, tokenization.notes)
        queries, documents = distinct_texts(records)
        encoded = [*tokenization.queries(queries), *tokenization.documents(documents)]
        return text_features(encoded, tokenization.notes)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        if self.query_len > model_config.max_positions:
            expected = f'at most {model_config.max_positions}, the positions of the encoder'
            raise UserError('config.task.query_len', str(self.query_len), expected, 'choose fewer tokens')
        # The last augmenting [MASK] must attend to an ordinary token, even in the shortest query, [CLS] [SEP].
        farthest = model_config.attention_window // 2 + 2
        if self.augment and not self.attend and model_config.attention_window and self.query_len > farthest:
            found = f'{self.query_len} with an attention window of {model_config.attention_window}'
            fix = 'choose fewer, or set config.task.attend'
            raise UserError('config.task.query_len', found, f'at most {farthest} tokens', fix)
        return self.head.module(model_config, self.dim, attend=self.attend or not self.augment)

    def model_files(self, model_config: BertConfig) -> Mapping[str, bytes]:
        return multi_vector_files(self._settings, model_config.width, self.dim)

    def predictions(self, records: Records, features: Features, outputs: Outputs) -> Predictions:
        """Returns the score of each pair, or the ranking of each query."""
        del features
        queries, documents = distinct_texts(records)
        vectors = [x[(x != 0).any(-1)] for x in outputs['token_vectors']]
        sides = vectors[: len(queries)], vectors[len(queries) :]
        if isinstance(records[0], Query):
            return make_rankings(records, lambda count: search(*sides, count))
        first, second = (dict(zip(*pair, strict=True)) for pair in zip((queries, documents), sides, strict=True))
        return [max_sim_of_pair(first[record.texts[0]], second[record.texts[1]]) for record in records]

    def ensemble_predictions(self, records: Records, members: Sequence[tuple[Features, Outputs]]) -> Predictions:
        """See Task. The vectors of a token are concatenated, so a cosine is the mean of the members' cosines."""
        rows = zip(*(outputs['token_vectors'] for _, outputs in members), strict=True)
        vectors = [np.concatenate(row, axis=-1) / np.sqrt(np.float32(len(members))) for row in rows]
        return self.predictions(records, self._shared_features(members), {'token_vectors': vectors})


def max_sim_of_pair(query: np.ndarray, document: np.ndarray) -> float:
    """Computes the MaxSim of token vectors [Q, D] and [S, D]. It is 0 for a document without tokens."""
    return float((query @ document.T).max(1, initial=-np.inf).sum(dtype=np.float64)) if len(document) else 0.0


class Tokenization:
    """The tokenization of ColBERT (arXiv 2004.12832, section 3.2).

    `notes` reports truncated texts, and prompts whose [unusedN] is not in the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, settings: MultiVector):
        self._tokenizer, self._settings = tokenizer, settings
        self.notes: list[str] = []
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        self._ids, self._skipped = ids, [ids[piece] for piece in settings.skiplist if piece in ids]

    def queries(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`, padded with [MASK] if `settings.augment`."""
        prompt, length, sequences = self._settings.query_prompt, self._settings.query_len, []
        for ids in self._encode(texts, prompt, length, 'queries', 'config.task.query_len'):
            missing = length - len(ids) if self._settings.augment else 0
            padded = np.pad(ids, (0, missing), constant_values=self._tokenizer.mask_id)
            roles = np.repeat(np.int32([ORDINARY, AUGMENTING]), [len(ids), missing])
            sequences.append((padded, {ROLES: roles}))
        return sequences

    def documents(self, texts: Sequence[str]) -> list[EncodedText]:
        """Returns the ids and roles of `[CLS] prompt text [SEP]`. Pieces of `settings.skiplist` are SKIPPED."""
        prompt, length = self._settings.document_prompt, self._settings.document_len
        sequences = self._encode(texts, prompt, length, 'documents', 'config.seq_len')
        roles = [np.where(np.isin(ids, self._skipped), SKIPPED, ORDINARY).astype(np.int32) for ids in sequences]
        return [(ids, {ROLES: x}) for ids, x in zip(sequences, roles, strict=True)]

    def _encode(self, texts: Sequence[str], prompt: str, length: int, name: str, key: str) -> list[np.ndarray]:
        tokenizer, marker = self._tokenizer, np.zeros(0, np.int32)
        word = (prompt.split(None, 1) or [''])[0]
        if is_unused(word) and word not in self._ids:
            self.notes.append(f'{word} is not in the vocabulary, so the prompt of {name} is read as text')
        if word in self._ids and tokenizer.encode([word])[0].tolist() != [self._ids[word]]:
            # The tokenizer does not produce a piece such as [unused0] from a text, so the id of the piece is added.
            marker, prompt = np.int32([self._ids[word]]), prompt[prompt.index(word) + len(word) :]
        encoded = [np.concatenate([marker, ids]) for ids in tokenizer.encode([prompt + text for text in texts])]
        if longer := sum(len(ids) > length - 2 for ids in encoded):
            self.notes.append(f'{longer:,} of {len(texts):,} {name} are longer than {key}={length} and lose their end')
        return [add_special_tokens(ids[: length - 2], tokenizer) for ids in encoded]
