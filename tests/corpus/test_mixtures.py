"""Tests the components and weights of config.corpus."""

import pytest

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import AUTO, parse_mixture
from bertjax.errors import UserError


def test_mixtures_are_parsed_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'year=2024').touch()
    for path in (f'{tmp_path}/year=2024', '~/year=2024'):
        assert parse_mixture(path) == [(path, None)]
    assert parse_mixture('a.txt') == [('a.txt', None)]
    assert parse_mixture('s3://a/year=2024') == [('s3://a/year=2024', None)]
    assert parse_mixture('s3://a=1,s3://b=2') == [('s3://a', 1.0), ('s3://b', 2.0)]
    assert parse_mixture('a.txt, b.txt') == [('a.txt,b.txt', None)]
    assert parse_mixture('pydoc:=0.5,tfds:wiki40b/en@train#text=1.5') == [
        ('pydoc:', 0.5),
        ('tfds:wiki40b/en@train#text', 1.5),
    ]
    assert parse_mixture('a=auto,b=auto') == [('a', AUTO), ('b', AUTO)]
    for spec, found in (
        ('a=1,b', 'some'),
        ('a=1,b=auto', 'numbers together with =auto'),
        ('a=auto,b', 'some'),
        ('a=0', "weight '0'"),
        ('a=-1', 'weight'),
        ('a=1e999,b=1', "weight '1e999'"),
        ('a,,b', 'empty'),
    ):
        with pytest.raises(UserError, match=found):
            parse_mixture(spec)
    with pytest.raises(UserError, match='components without weights for one store'):
        build_store('pydoc:=1', 'unused', 'unused')
