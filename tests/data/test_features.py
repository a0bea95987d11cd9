"""Tests ragged features: batches, the cache, and damaged files."""

import dataclasses
import types

import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder, Features, describe_unknown_pieces, load_or_build

PAD = 7


def sentences(count=5, choices=1):
    builder = FeatureBuilder(choices)
    for i in range(count):
        for c in range(choices):
            tokens = np.arange(10 * i + c, 10 * i + c + i + 2)
            builder.add_sequence(tokens, second=1 if i % 2 else None, token_labels=tokens % 3)
        builder.add_row(i // 2, labels=np.int32(i), weights=np.float32(0.5))
    return builder.build()


def test_a_batch_is_padded_with_an_attention_mask():
    features = sentences()
    batch = features.batch(np.array([3, 0, -1]), 6, PAD)
    np.testing.assert_array_equal(batch['input_ids'], [[30, 31, 32, 33, 34, PAD], [0, 1] + [PAD] * 4, [PAD] * 6])
    np.testing.assert_array_equal(batch['attention_mask'], [[1] * 5 + [0], [1, 1, 0, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(batch['segment_ids'], [[0, 1, 1, 1, 1, 0], [0] * 6, [0] * 6])
    np.testing.assert_array_equal(batch['token_labels'][0], [0, 1, 2, 0, 1, 0])
    np.testing.assert_array_equal(batch['labels'], [3, 0, 0])
    np.testing.assert_array_equal(batch['weights'], np.float32([0.5, 0.5, 0]))
    for name, (shape, dtype) in features.spec(3, 6).items():
        assert batch[name].shape == shape and batch[name].dtype == dtype, name


def test_the_sequences_of_choices_stay_together():
    features = sentences(4, choices=3)
    assert len(features) == 4
    batch = features.batch(np.array([2, -1]), 4, PAD)
    assert batch['input_ids'].shape == (2, 3, 4)
    np.testing.assert_array_equal(batch['input_ids'][0], [[20, 21, 22, 23], [21, 22, 23, 24], [22, 23, 24, 25]])
    assert (batch['input_ids'][1] == PAD).all() and batch['labels'].tolist() == [2, 0]
    np.testing.assert_array_equal(features.lengths, [2, 3, 4, 5])


def test_unknown_pieces_are_counted_by_record():
    builder = FeatureBuilder(choices=2)
    for record, sequences in ((0, ([2, 1, 1, 3], [])), (0, ([2, 1, 3], [2, 7, 3])), (1, ([2, 1, 3], [2, 1, 1, 3]))):
        for tokens in sequences:
            builder.add_sequence(tokens)
        builder.add_row(record)
    builder.add_sequence([2, 7, 3])
    builder.add_sequence([])  # a missing text of a smaller group
    builder.add_row(2)
    tokenizer = types.SimpleNamespace(cls_id=2, sep_id=3, unk_id=1, family='wordpiece')
    counts = builder.build().unknown_counts(tokenizer)
    assert counts.tolist() == [3, 8, 6, 1]
    (note,) = describe_unknown_pieces(counts, tokenizer)
    assert note.startswith('75.0% of the pieces are [UNK], and 1 of 3 records are only [UNK]: ')
    assert not describe_unknown_pieces(np.array([3, 800, 8, 1]), tokenizer)
    tokenizer.unk_id = tokenizer.sep_id
    assert builder.build().unknown_counts(tokenizer).tolist() == [3, 8, 0, 0]


def test_a_row_with_too_few_sequences_is_refused():
    builder = FeatureBuilder(2)
    builder.add_sequence([1, 2])
    builder.add_row(0, labels=np.int32(1))
    with pytest.raises(ValueError, match='1 sequences for 1 rows of 2'):
        builder.build()
    with pytest.raises(ValueError, match='token_labels'):
        builder.add_sequence([1, 2], token_labels=np.zeros(3))


def same(a: Features, b: Features) -> bool:
    return a.fingerprint == b.fingerprint and (a.choices, a.notes) == (b.choices, b.notes)


def test_cached_features_are_equal(tmp_path):
    features, calls = dataclasses.replace(sentences(), notes=('one\n  a', 'é')), []

    def make():
        calls.append(1)
        return features

    assert load_or_build(tmp_path, ('key', 1), make) is features
    assert same(load_or_build(tmp_path, ('key', 1), make), features) and len(calls) == 1
    load_or_build(tmp_path, ('key', 2), make)
    assert len(calls) == 2


@pytest.mark.parametrize('size', [0, 10, 400])
def test_a_damaged_cache_file_is_rebuilt(tmp_path, size):
    load_or_build(tmp_path, 'key', sentences)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:size])
    assert same(load_or_build(tmp_path, 'key', sentences), sentences())
    assert same(Features.load(path), sentences())


def test_a_flipped_bit_in_a_header_of_the_cache_is_damage(tmp_path):
    load_or_build(tmp_path, 'key', sentences)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    start = content.index(b'PK\1\2')  # the first entry of the zip file's directory
    for byte in range(start + 4, start + 12):  # the versions, the flags and the compression
        for bit in range(8):
            damaged = bytearray(content)
            damaged[byte] ^= 1 << bit
            path.write_bytes(damaged)
            assert same(load_or_build(tmp_path, 'key', sentences), sentences())


def test_the_fingerprint_covers_every_array():
    features = sentences()
    for name in ('tokens', 'offsets', 'second', 'record'):
        assert not same(dataclasses.replace(features, **{name: getattr(features, name) + 1}), features), name
    assert not same(dataclasses.replace(features, row={**features.row, 'labels': np.zeros(5, np.int32)}), features)
