"""Tests that rows from a Python program are written as files that the task reads."""

import bertjax
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.workdir.rows import write_rows


def test_rows_can_be_the_diagnostic_set_of_glue(tmp_path):
    rows = [{'premise': 'it rains', 'hypothesis': 'it pours', 'label': 'neutral'}]
    recipe = write_rows(bertjax.recipe('glue:mnli', data={'train': rows, 'ax': rows}), tmp_path)
    (record,) = GlueTask(recipe.config.data, 32, task='mnli').records('ax')
    assert (record.first, record.second) == ('it rains', 'it pours')
