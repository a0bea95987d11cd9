"""Stores pairing plans on disk. A plan is made once, then memory-mapped."""

import functools
import hashlib
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from bertjax.corpus.store import StoreSplit
from bertjax.data import walking
from bertjax.data.hashing import hash_bits, permute
from bertjax.data.pairs import CHUNK, PairOptions, PairPlan
from bertjax.files.atomic import checksum, write_atomic
from bertjax.files.memory_map import register_mapped
from bertjax.files.small_files import read_json_or_none

# An input of the hash in the name of every plan. Increase it with any change to the result of `walking.walk`.
WALK_VERSION = 1

T = TypeVar('T')


def locate_in_plans(
    indices: np.ndarray, ends: np.ndarray, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Maps the numbers of examples or rows to the slots of plans. Each slot is one example or row.

    A cycle goes through all plans one after the other. In each cycle, the slots of each plan have a new order.

    Args:
      indices: int64 [B], the numbers of examples or rows, not negative.
      ends: int64 [plans], the end of each plan within a cycle, in examples or rows.
      seed: The seed of the phase.
      stream: The stream of the permutation, a `Stream`.

    Returns:
      The cycle, the plan, the slot within the plan, and the start of the plan within a cycle, int64 [B] each.

    Raises:
      ValueError: A number is negative.
    """
    indices = np.asarray(indices, np.int64)
    if (indices < 0).any():
        raise ValueError('the number of an example or a row is negative')
    cycle, rest = np.divmod(indices, ends[-1])
    plan = np.searchsorted(ends, rest, 'right')
    counts = np.diff(ends, prepend=0)
    begin = (ends - counts)[plan]
    return cycle, plan, permute(rest - begin, counts[plan], hash_bits(seed, stream, cycle, plan)), begin


def load_plans(
    split: StoreSplit, options: PairOptions, seq_len: int, seed: int, cache_dir: str | pathlib.Path | None
) -> list[PairPlan]:
    """Loads the `options.plans` plans of a split from `cache_dir`. Makes and saves plans that are absent or damaged.

    The NAME of a plan consists of a hash of the rules that all plans share, and the index of the plan. `NAME.npy` has
    the chunks. `NAME.json` has their number, the checksum of `NAME.npy`, and the other fields of the plan. A plan whose
    two files do not match is made again. Processes need no lock, because all write the same bytes. If `cache_dir` is
    None, the plans stay in memory.
    """
    # The number of plans used for calibration, which affects the probability of IsNext.
    calibrated = options.balanced and walking.calibration_plans(split, options)
    rules = [WALK_VERSION, split.sha, options.mode, seq_len, options.short_probability, calibrated, seed]
    name = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]
    plans: list[PairPlan] = []

    def make(number: int) -> tuple[np.ndarray, dict[str, Any]]:
        probability = plans[0].next_probability if plans else walking.calibrate(split, options, seq_len, seed)
        plan = walking.walk(split, options, seq_len, seed, number, probability)
        return plan.chunks, {
            'chunks': len(plan.chunks),
            'next_probability': plan.next_probability,
            'one_sentence': plan.one_sentence,
        }

    for number in range(options.distinct_plans):
        plans.append(load_or_make(cache_dir, f'plan-{name}-{number:03d}', _plan, functools.partial(make, number)))
    return plans * (options.plans // len(plans))


def _plan(chunks: np.ndarray, facts: dict[str, Any]) -> PairPlan | None:
    if chunks.dtype != CHUNK or chunks.shape != (facts['chunks'],):
        return None
    return PairPlan(chunks, int(facts['one_sentence']), float(facts['next_probability']))


def remove_leftovers(cache_dir: pathlib.Path) -> None:
    """Removes the temporary files of killed processes. No other process may write plans during the call."""
    for path in (*cache_dir.glob('.plan-*.tmp-*'), *cache_dir.glob('.packing-*.tmp-*')):
        path.unlink()


def load_or_make(
    cache_dir: str | pathlib.Path | None,
    name: str,
    load: Callable[[np.ndarray, dict[str, Any]], T | None],
    make: Callable[[], tuple[np.ndarray, dict[str, Any]]],
) -> T:
    """Loads an object that consists of an array and JSON values. Makes and saves it if it is absent or damaged.

    The files in `cache_dir` are NAME.npy, and NAME.json with the values and the checksum of NAME.npy. If `cache_dir` is
    None, the object stays in memory. `make` returns the array and the values. `load` makes the object from both, or
    returns None if they do not match.
    """
    if cache_dir is None:
        return load(*make())
    stem = pathlib.Path(cache_dir) / name
    loaded = _read_array(stem, load)
    if loaded is None:
        array, facts = make()
        file = io.BytesIO()
        np.save(file, array)
        data = file.getbuffer()
        facts = {**facts, 'sha256': hashlib.sha256(data).hexdigest()}
        write_atomic(stem.with_suffix('.npy'), data)
        write_atomic(stem.with_suffix('.json'), json.dumps(facts, indent=2, sort_keys=True) + '\n')
        loaded = _read_array(stem, load) or load(array, facts)
    return loaded


def _read_array(stem: pathlib.Path, load: Callable[[np.ndarray, dict[str, Any]], T | None]) -> T | None:
    """Returns `load(array, facts)` with the memory-mapped array, or None if the files are absent or damaged."""
    path = stem.with_suffix('.npy')

    def verify(facts: dict[str, Any]) -> T | None:
        if checksum(path) != facts['sha256']:
            return None
        array = np.load(path, mmap_mode='r', allow_pickle=False).view(np.ndarray)
        register_mapped(path, path.stat().st_size)
        return load(array, facts)

    return read_json_or_none(stem.with_suffix('.json'), verify)
