"""Tests students that are initialized with blocks of a teacher, and the checks of a teacher."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from bertjax.distill.teacher import Teacher, check_inputs
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.model.stacking import unstack_layers

CONFIG = BertConfig(vocab_size=50, num_layers=5, width=8, num_heads=2, mlp_dim=16, max_positions=8)


@pytest.fixture
def teacher():
    rng = np.random.default_rng(0)
    blocks = {'mlp': {'up': rng.standard_normal((5, 8, 16))}, 'norm': {'scale': rng.standard_normal((5, 8))}}
    params = {'encoder': {'embeddings': rng.standard_normal((50, 8)), 'layers': blocks}, 'mlm': rng.standard_normal(50)}
    params['mix'] = {'weights': rng.standard_normal(5)}
    imported = types.SimpleNamespace(params=params, missing=['mlm/dense/kernel'], config=CONFIG)
    return Teacher('DIR', types.SimpleNamespace(config=CONFIG), imported, None)


@pytest.mark.parametrize('scan', [True, False])
def test_a_student_has_the_chosen_blocks_and_all_other_parameters(teacher, scan):
    student = dataclasses.replace(CONFIG, num_layers=3, scan_layers=scan)
    params, whole = teacher.as_student((0, 2, 4), student), unstack_layers(teacher.imported.params)
    tree = unstack_layers(params) if scan else params
    assert tree['encoder'].keys() == {'embeddings', 'layers_0', 'layers_1', 'layers_2'}
    for i, block in enumerate((0, 2, 4)):
        jax.tree.map(np.testing.assert_array_equal, tree['encoder'][f'layers_{i}'], whole['encoder'][f'layers_{block}'])
    np.testing.assert_array_equal(tree['encoder']['embeddings'], whole['encoder']['embeddings'])
    np.testing.assert_array_equal(tree['mlm'], whole['mlm'])
    np.testing.assert_array_equal(tree['mix']['weights'], whole['mix']['weights'][[0, 2, 4]])
    four = teacher.imported.params['mix']['weights'] = np.arange(4.0)  # of the last four layers
    np.testing.assert_array_equal(teacher.as_student((0, 1, 2, 4), student)['mix']['weights'], four)


def test_a_teacher_with_too_few_positions_is_refused():
    check_inputs('DIR', CONFIG, 8)
    with pytest.raises(UserError, match=r'config\.distill\.teacher: found DIR, which has 8 positions, expected 9'):
        check_inputs('DIR', CONFIG, 9)


def test_a_teacher_with_too_few_segment_types_is_refused():
    check_inputs('DIR', CONFIG, 8, 2)
    with pytest.raises(UserError, match=r'found DIR, which has 2 segment types, expected 3, as in the corpus'):
        check_inputs('DIR', CONFIG, 8, 3)


def test_a_teacher_without_segment_embeddings_is_accepted():
    check_inputs('DIR', dataclasses.replace(CONFIG, num_segments=0), 8)  # as in DistilBERT


def test_the_fingerprint_of_a_teacher_covers_every_number(teacher):
    before = teacher.fingerprint
    changed = jax.tree.map(np.copy, teacher.imported.params)
    other = dataclasses.replace(teacher, imported=types.SimpleNamespace(params=changed))
    assert other.fingerprint == before
    changed['encoder']['layers']['norm']['scale'][3, 2] += 1e-6
    assert dataclasses.replace(other).fingerprint != before
