"""A teacher made ready, and the student that begins as a part of it."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.convert.load import ImportedModel
from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.model.config import BertConfig, FieldKind, fields_of, parameter_count
from bertjax.model.stacking import init_params, unstack_layers
from bertjax.parallel.partition import mesh_context
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.train.settings import check_mesh
from bertjax.train.state import abstract_state, put_like
from bertjax.workdir.resolve_path import huggingface_directory

KEY = 'distill.teacher'


def teacher_directory(teacher: str) -> str:
    """The Hugging Face directory of config.distill.teacher.

    Raises:
      UserError: there is none.
    """
    return huggingface_directory(teacher, f'config.{KEY}')


def teacher_config_changes(dtype: str) -> dict[str, Any]:
    """How a teacher is computed, as fields of its BertConfig: without dropout, in the student's `dtype`."""
    return {'dropout': 0.0, 'attention_dropout': 0.0, 'scan_layers': True, 'dtype': dtype}


def check_vocabulary(directory: str, student: Tokenizer, key: str = KEY) -> None:
    """Refuses a teacher (config.KEY) of other pieces than the student's: the two would read different texts.

    Raises:
      UserError: it is.
    """
    theirs = load_tokenizer(directory)
    if theirs.fingerprint != student.fingerprint:
        found = f'a vocabulary of {theirs.vocab_size:,} pieces in {directory}'
        expected = f"the student's, {student.vocab_size:,} pieces"
        if theirs.vocab_size == student.vocab_size:
            found, expected = f'another vocabulary in {directory}', f"the student's {student.vocab_size:,} pieces"
        raise UserError(f'config.{key}', found, expected, 'leave config.tokenizer empty, or name another model')


def check_rows(directory: str, theirs: int, pieces: int, key: str = KEY) -> None:
    """Refuses a teacher (config.KEY) whose masked language model has another number of outputs than there are pieces:
    what is more, as of a table that was padded, would be taught as words that do not exist.

    Raises:
      UserError: it has.
    """
    if theirs != pieces:
        found = f'a model with {theirs:,} rows of words in {directory}'
        expected = f'{pieces:,}, the pieces of its tokenizer'
        fix = f'save it with as many, in transformers by resize_token_embeddings({pieces}), or name another model'
        raise UserError(f'config.{key}', found, expected, fix)


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model that is asked and never changed.

    Attributes:
      directory: where it is from.
      model: the module.
      imported: its parameters on the host, blocks stacked.
      mesh: where it is put; None for one whose numbers alone are wanted.
      key: the config key that names it.
    """

    directory: str
    model: nn.Module
    imported: ImportedModel
    mesh: Mesh | None
    key: str = KEY

    @property
    def config(self) -> BertConfig:
        """Of its encoder."""
        return self.model.config

    def check_head(self, parts: Sequence[str], what: str) -> None:
        """Refuses a teacher whose directory lacks one of these parts of the tree, which would be drawn.

        Raises:
          UserError: it does.
        """
        lacking = [path for path in self.imported.missing if path.split('/')[0] in parts]
        if lacking:
            fix = 'name a model that has it'
            raise UserError(f'config.{self.key}', f'{self.directory}, which has no {", ".join(lacking)}', what, fix)

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of all its numbers."""
        digest = hashlib.sha256()
        for path, x in sorted(flat_paths(self.imported.params).items()):
            digest.update(f'{path} {x.dtype} {x.shape}'.encode())
            digest.update(np.ascontiguousarray(x))
        return digest.hexdigest()

    @functools.cached_property
    def abstract(self) -> Any:
        """Shapes, dtypes and shardings of its parameters: split as the student's are.

        Raises:
          UserError: a mesh that does not divide it.
        """
        check_mesh(self.config, self.mesh)
        inputs = [jnp.zeros(shape, jnp.int32) for shape in self.model.smallest_inputs]
        with mesh_context(self.mesh):
            return abstract_state(lambda key: init_params(self.model, key, *inputs), self.mesh)

    @functools.cached_property
    def params(self) -> Any:
        """Its parameters on the mesh."""
        return put_like(self.imported.params, self.abstract)

    def check_length(self, seq_len: int) -> None:
        """Refuses a teacher that knows fewer positions than sequences of `seq_len` tokens have.

        Raises:
          UserError: it does.
        """
        longest = self.config.max_positions
        if seq_len > longest:
            found = f'{self.directory}, which knows {longest} positions'
            fix = f'set --config.seq_len={longest}, or name another model'
            raise UserError(f'config.{self.key}', found, f'{seq_len}, as many as sequences have', fix)

    def check_segments(self, segments: int) -> None:
        """Refuses a teacher that knows fewer segment types than sentences have been given, of which the rest would be
        nothing to it.

        Raises:
          UserError: it does.
        """
        known = self.config.num_segments
        if segments > known:
            found, expected = f'{self.directory}, which knows {known} segment types', f'{segments}, as the corpus has'
            raise UserError(f'config.{self.key}', found, expected, 'name another model')

    def describe(self) -> str:
        """A line for a person."""
        c = self.config
        return (
            f'teacher {self.directory}: {c.num_layers} layers, width {c.width}, {c.num_heads} heads, '
            f'{parameter_count(c):,} parameters'
        )

    def check_copies(self, student: BertConfig) -> None:
        """Refuses a student of another shape or function than the blocks that it is to begin as.

        Raises:
          UserError: the first field that differs.
        """
        free = ('num_layers', 'nsp', 'param_dtype')
        for name in fields_of(FieldKind.ARCHITECTURE):
            ours, theirs = getattr(student, name), getattr(self.config, name)
            if name not in free and ours != theirs:
                fix = 'set it so, or begin with --config.distill.student_init=random'
                raise UserError(f'config.model.{name}', str(ours), f"{theirs}, as the teacher's blocks have it", fix)

    def as_student(self, layers: Sequence[int], student: BertConfig) -> dict[str, Any]:
        """The teacher with these of its blocks alone, as a tree of the student's form: the same numbers."""
        params = self.imported.params
        blocks = jax.tree.map(lambda x: x[list(layers)], params['encoder']['layers'])
        tree = {**params, 'encoder': {**params['encoder'], 'layers': blocks}}
        return tree if student.scan_layers else unstack_layers(tree)
