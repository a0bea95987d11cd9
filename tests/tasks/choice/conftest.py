"""A folder with files of SWAG."""

import pathlib

import pytest
from swag_files import SWAG, TEST

from bertjax.tasks.choice.task import MultipleChoiceTask


@pytest.fixture
def swag(tmp_path: pathlib.Path) -> MultipleChoiceTask:
    (tmp_path / 'train.csv').write_bytes(('\ufeff' + SWAG.replace('\n', '\r\n')).encode())
    (tmp_path / 'val.csv').write_text(SWAG)
    (tmp_path / 'test.csv').write_text(TEST)
    return MultipleChoiceTask(str(tmp_path), 16)
