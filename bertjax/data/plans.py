"""Stores pairing plans on disk. A plan is made once, then memory-mapped."""

import functools
import hashlib
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax.corpus.store import StoreSplit
from bertjax.data import walking
from bertjax.data.hashing import hash_bits, permute
from bertjax.data.pairs import PairOptions, PairPlan
from bertjax.files.atomic import checksum, write_atomic
from bertjax.files.memory_map import register_mapped
from bertjax.files.small_files import read_json_or_none

# An input of the hash in the name of every plan. Increase it with any change to the result of `walking.walk`.
WALK_VERSION = 2


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
    """
    cycle, rest = np.divmod(np.asarray(indices, np.int64), ends[-1])
    plan = np.searchsorted(ends, rest, 'right')
    counts = np.diff(ends, prepend=0)
    begin = (ends - counts)[plan]
    return cycle, plan, permute(rest - begin, counts[plan], hash_bits(seed, stream, cycle, plan)), begin


def load_plans(
    split: StoreSplit, options: PairOptions, seq_len: int, seed: int, cache_dir: str | pathlib.Path | None
) -> list[PairPlan]:
    """Loads the `options.plans` plans of a split from `cache_dir`. Makes and saves plans that are absent or damaged.

    The name of a plan consists of a hash of the rules that all plans share, and the index of the plan. Processes need
    no lock, because all write the same bytes. If `cache_dir` is None, the plans stay in memory.
    """
    # The number of plans used for calibration, which affects the probability of IsNext.
    calibrated = options.balanced and walking.calibration_plans(split, options)
    rules = [WALK_VERSION, split.sha, options.mode, seq_len, options.short_probability, calibrated, seed]
    name = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]
    plans: list[PairPlan] = []

    def make(number: int) -> tuple[np.ndarray, dict[str, Any]]:
        probability = plans[0].next_probability if plans else walking.calibrate(split, options, seq_len, seed)
        plan = walking.walk(split, options, seq_len, seed, number, probability)
        facts = {'next_probability': plan.next_probability, 'one_sentence': plan.one_sentence}
        return plan.chunks, {'chunks': len(plan.chunks), **facts}

    for number in range(options.distinct_plans):
        chunks, facts = load_or_make(cache_dir, f'plan-{name}-{number:03d}', functools.partial(make, number))
        plans.append(PairPlan(chunks, facts['one_sentence'], facts['next_probability']))
    return plans * (options.plans // len(plans))


def remove_leftovers(cache_dir: pathlib.Path) -> None:
    """Removes the temporary files of killed processes. No other process may write plans during the call."""
    for path in (*cache_dir.glob('.plan-*.tmp-*'), *cache_dir.glob('.packing-*.tmp-*')):
        path.unlink()


def load_or_make(
    cache_dir: str | pathlib.Path | None, name: str, make: Callable[[], tuple[np.ndarray, dict[str, Any]]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Loads an array and a few JSON values. Calls `make` and saves its results if they are absent or damaged.

    The files in `cache_dir` are NAME.npy, which is memory-mapped, and NAME.json with the values and the checksum of
    NAME.npy. If `cache_dir` is None, nothing is saved.
    """
    if cache_dir is None:
        return make()
    stem = pathlib.Path(cache_dir) / name
    loaded = _read_array(stem)
    if loaded is None:
        array, facts = make()
        file = io.BytesIO()
        np.save(file, array)
        data = file.getbuffer()
        saved = {**facts, 'sha256': hashlib.sha256(data).hexdigest()}
        write_atomic(stem.with_suffix('.npy'), data)
        write_atomic(stem.with_suffix('.json'), json.dumps(saved, indent=2, sort_keys=True) + '\n')
        loaded = _read_array(stem) or (array, facts)
    return loaded


def _read_array(stem: pathlib.Path) -> tuple[np.ndarray, dict[str, Any]] | None:
    path = stem.with_suffix('.npy')

    def verify(facts: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]] | None:
        if checksum(path) != facts['sha256']:
            return None
        array = np.load(path, mmap_mode='r', allow_pickle=False).view(np.ndarray)
        register_mapped(path, path.stat().st_size)
        return array, facts

    return read_json_or_none(stem.with_suffix('.json'), verify)
