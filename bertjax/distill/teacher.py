"""The teacher of a distillation, and the parameters that a student copies from it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.convert.load import ImportedModel
from bertjax.convert.trees import params_digest
from bertjax.errors import UserError
from bertjax.model.config import BertConfig, FieldKind, fields_of, parameter_count
from bertjax.model.stacking import STACKED, init_params, unstack_layers
from bertjax.parallel.partition import mesh_context
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.training.settings import check_mesh
from bertjax.training.state import abstract_state, put_like

KEY = 'distill.teacher'


def teacher_config_changes(dtype: str) -> dict[str, Any]:
    """Returns the changes to the BertConfig of a teacher: no dropout, scanned layers, and the given `dtype`."""
    return {'dropout': 0.0, 'attention_dropout': 0.0, 'scan_layers': True, 'dtype': dtype}


def check_vocabulary(directory: str, student: Tokenizer, key: str = KEY) -> None:
    """Raises a UserError, which names the config key `key`, if teacher and student have different vocabularies.

    The vocabularies must be equal, because both models get the same token ids.
    """
    teacher = load_tokenizer(directory)
    if teacher.fingerprint != student.fingerprint:
        found = f'a vocabulary of {teacher.vocab_size:,} pieces in {directory}'
        expected = f"the student's vocabulary of {student.vocab_size:,} pieces"
        if teacher.vocab_size == student.vocab_size:
            found, expected = f'another vocabulary in {directory}', f"the student's {student.vocab_size:,} pieces"
        raise UserError(f'config.{key}', found, expected, 'leave config.tokenizer empty, or name another model')


def check_inputs(directory: str, teacher: BertConfig, seq_len: int, segments: int = 0, key: str = KEY) -> None:
    """Raises a UserError if the teacher has fewer than `seq_len` positions or `segments` segment types.

    The error names the config key `key`.
    """
    if seq_len > teacher.max_positions:
        found = f'{directory}, which has {teacher.max_positions} positions'
        fix = f'set --config.seq_len={teacher.max_positions}, or name another model'
        raise UserError(f'config.{key}', found, f'{seq_len}, the length of the sequences', fix)
    if segments > teacher.num_segments:
        found = f'{directory}, which has {teacher.num_segments} segment types'
        raise UserError(f'config.{key}', found, f'{segments}, as in the corpus', 'name another model')


def check_copies(teacher: BertConfig, student: BertConfig) -> None:
    """Raises a UserError if the architecture of the student does not allow it to copy blocks of the teacher.

    The error names the first config field that differs but must be equal.
    """
    may_differ = ('num_layers', 'nsp', 'param_dtype', 'init', 'init_stddev')
    for name in fields_of(FieldKind.ARCHITECTURE):
        student_value, teacher_value = getattr(student, name), getattr(teacher, name)
        if name not in may_differ and student_value != teacher_value:
            fix = 'set it to this value, or set --config.distill.student_init=random'
            raise UserError(f'config.model.{name}', str(student_value), f'{teacher_value}, as in the teacher', fix)


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A trained model that is never updated.

    Attributes:
      directory: The directory that the model was loaded from.
      module: The Flax module of the model.
      imported: The parameters on the host, with stacked blocks.
      mesh: The devices for the parameters; None if only `imported` is used.
      key: The config key that names the model.
    """

    directory: str
    module: nn.Module
    imported: ImportedModel
    mesh: Mesh | None
    key: str = KEY

    @property
    def config(self) -> BertConfig:
        """The config of the encoder."""
        return self.module.config

    def check_head(self, parts: Sequence[str], expected: str) -> None:
        """Raises a UserError if the directory lacks a parameter in the top-level `parts` of the parameter tree.

        The model has random values for missing parameters.
        """
        missing = [path for path in self.imported.missing if path.split('/')[0] in parts]
        if missing:
            fix = 'name a model that has these parts'
            found = f'{self.directory}, which has {self.imported.describe_missing(missing)}'
            raise UserError(f'config.{self.key}', found, expected, fix)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The sha256 (hex) of all parameters."""
        return params_digest(self.imported.params)

    @functools.cached_property
    def abstract(self) -> Any:
        """The shapes, dtypes and shardings of the parameters. The sharding rules are those of the student.

        Raises a UserError if the teacher cannot be sharded over the mesh.
        """
        check_mesh(self.config, self.mesh)
        with mesh_context(self.mesh):
            return abstract_state(lambda key: init_params(self.module, key), self.mesh)

    @functools.cached_property
    def params(self) -> Any:
        """The parameters on the mesh."""
        return put_like(self.imported.params, self.abstract)

    def describe(self) -> str:
        """Returns one line about the size of the teacher."""
        c = self.config
        return (
            f'teacher {self.directory}: {c.num_layers} layers, width {c.width}, {c.num_heads} heads, '
            f'{parameter_count(c):,} parameters'
        )

    def as_student(self, layers: Sequence[int], student: BertConfig) -> dict[str, Any]:
        """Returns the teacher's parameters with only the blocks `layers`, in the tree layout of the student."""
        params = self.imported.params
        blocks = jax.tree.map(lambda x: x[list(layers)], params['encoder'][STACKED])
        tree = {**params, 'encoder': {**params['encoder'], STACKED: blocks}}
        # With config.task.layers=sum_all, `mix` has a weight per block.
        if 'mix' in params and len(params['mix']['weights']) == self.config.num_layers:
            tree['mix'] = {**params['mix'], 'weights': params['mix']['weights'][list(layers)]}
        return tree if student.scan_layers else unstack_layers(tree)
