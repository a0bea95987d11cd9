"""Tests the hashes and thresholds of splits."""

import hashlib

import pytest

from bertjax.text.hash_split import hash64, hash_threshold


def test_a_hash_is_the_first_eight_bytes_of_the_digest():
    digest = bytes(range(1, 33))
    assert hash64(digest) == 0x0102030405060708 and hash64(digest, 'little') == 0x0807060504030201
    assert hash64(digest[:8]) == hash64(digest)


def test_thresholds_are_shares_of_two_to_the_64():
    assert hash_threshold(0) == 0 and hash_threshold(1) == 2**64 and hash_threshold(0.25) == 2**62


def test_a_threshold_selects_its_share_of_the_texts():
    hashes = [hash64(hashlib.blake2b(str(number).encode()).digest()) for number in range(10_000)]
    assert sum(value < hash_threshold(0.2) for value in hashes) / len(hashes) == pytest.approx(0.2, abs=0.02)
