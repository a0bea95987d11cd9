"""Plans on disk: walked once, then memory-mapped."""

import hashlib
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from bertjax.data import walking
from bertjax.data.hashing import hash_bits, permute
from bertjax.data.pairs import CHUNK, PairOptions, PairPlan, TokenSplit, check_split
from bertjax.files.atomic import checksum, write_atomic
from bertjax.files.mapped import note_mapped
from bertjax.files.small_files import read_json_or_none

# Part of every plan's name: raise it with any change to what a walk gives.
WALK_VERSION = 1

T = TypeVar('T')


def place_in_plans(
    indices: np.ndarray, ends: np.ndarray, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where numbers lead that go through all plans, one after the other, each in an order of the cycle's own.

    Args:
      indices: int64 [B], none negative.
      ends: int64 [plans], where each plan ends within a cycle.
      seed: of the phase.
      stream: what the order is hashed with, a `Stream`.

    Returns:
      int64 [B] each: the cycle, the plan, the place within the plan, and where the plan begins within a cycle.

    Raises:
      ValueError: a negative number.
    """
    indices = np.asarray(indices, np.int64)
    if (indices < 0).any():
        raise ValueError('a number of an example or a row is negative')
    cycle, rest = np.divmod(indices, ends[-1])
    plan = np.searchsorted(ends, rest, 'right')
    counts = np.diff(ends, prepend=0)
    begin = (ends - counts)[plan]
    return cycle, plan, permute(rest - begin, counts[plan], hash_bits(seed, stream, cycle, plan)), begin


def load_plans(
    split: TokenSplit, options: PairOptions, seq_len: int, seed: int, cache_dir: str | pathlib.Path | None
) -> list[PairPlan]:
    """The `options.plans` plans of a split, from `cache_dir` where they are there and whole, else walked and put there.

    A plan is named by the split's hash, the rules and the seed. `NAME.npy` holds the chunks, `NAME.json` their number,
    checksum and the plan's other facts; a pair of files that do not agree is walked again. Processes that walk the same
    plan at the same time write the same bytes.

    Args:
      cache_dir: a local directory, made when absent; None keeps the plans in memory.
    """
    check_split(split, options, seq_len)
    rules = [WALK_VERSION, split.sha, options.mode, seq_len, options.short_probability, options.balanced, seed]
    name = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]
    plans: list[PairPlan] = []
    probability = None
    for number in range(options.plans):
        stem = None if cache_dir is None else pathlib.Path(cache_dir) / f'plan-{name}-{number:03d}'
        plan = None if stem is None else _read(stem)
        if plan is None:
            if probability is None:
                probability = plans[0].next_probability if plans else walking.calibrate(split, options, seq_len, seed)
            plan = walking.walk(split, options, seq_len, seed, number, probability)
            if stem is not None:
                _write(stem, plan)
                plan = _read(stem) or plan
        plans.append(plan)
    return plans


def remove_leftovers(cache_dir: pathlib.Path) -> None:
    """Removes what processes that were killed left of plans; no other process may be writing there."""
    for path in (*cache_dir.glob('.plan-*.tmp-*'), *cache_dir.glob('.packing-*.tmp-*')):
        path.unlink()


def _write(stem: pathlib.Path, plan: PairPlan) -> None:
    facts = {
        'chunks': len(plan.chunks),
        'next_probability': plan.next_probability,
        'one_sentence': plan.one_sentence,
    }
    write_array(stem, plan.chunks, facts)


def _read(stem: pathlib.Path) -> PairPlan | None:
    """The plan, or None when it is absent or damaged."""

    def load(chunks: np.ndarray, facts: dict) -> PairPlan | None:
        if chunks.dtype != CHUNK or chunks.shape != (facts['chunks'],):
            return None
        return PairPlan(chunks, int(facts['one_sentence']), float(facts['next_probability']))

    return read_array(stem, load)


def write_array(stem: pathlib.Path, array: np.ndarray, facts: dict[str, Any]) -> None:
    """Writes STEM.npy, then STEM.json: its facts and its checksum."""
    file = io.BytesIO()
    np.save(file, array)
    data = file.getbuffer()
    facts = {**facts, 'sha256': hashlib.sha256(data).hexdigest()}
    write_atomic(stem.with_suffix('.npy'), data)
    write_atomic(stem.with_suffix('.json'), json.dumps(facts, indent=2, sort_keys=True) + '\n')


def read_array(stem: pathlib.Path, load: Callable[[np.ndarray, dict[str, Any]], T | None]) -> T | None:
    """What `load` makes of an array of `write_array`, memory-mapped, and its facts; None where they are absent or
    damaged."""
    path = stem.with_suffix('.npy')

    def checked(facts: dict[str, Any]) -> T | None:
        if checksum(path) != facts['sha256']:
            return None
        array = np.load(path, mmap_mode='r', allow_pickle=False).view(np.ndarray)
        note_mapped(path, path.stat().st_size)
        return load(array, facts)

    return read_json_or_none(stem.with_suffix('.json'), checked)
