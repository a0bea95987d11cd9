"""A batch's sequences at fixed places of rows, which differ in length from group to group: one program, little padding.

All that is computed position by position takes the rows one after the other as one; attention takes each group by
itself. What a sequence gives is what it gives in a row of its own, up to rounding, dropout included.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model.dropout import Dropout


@dataclasses.dataclass(frozen=True)
class Groups:
    """Where N sequences of a batch are in T positions.

    A batch of R·N sequences is R times that: what each device has, and each part of an accumulation, is alike.

    Attributes:
      sizes: (rows, length) of each group, one after the other: T positions in all.
      slots: (first of the T positions, room) of each of the N sequences, in the order of the batch; none in two rows.
    """

    sizes: tuple[tuple[int, int], ...]
    slots: tuple[tuple[int, int], ...]

    @functools.cached_property
    def positions(self) -> int:
        """T."""
        return sum(rows * length for rows, length in self.sizes)

    @property
    def mean_length(self) -> float:
        """Positions a sequence."""
        return self.positions / len(self.slots)

    @functools.cached_property
    def longest(self) -> int:
        """The most room of a sequence."""
        return max(room for _, room in self.slots)

    @functools.cached_property
    def sequence(self) -> np.ndarray:
        """int32 [T], whose position it is; -1: nobody's."""
        found = np.full(self.positions, -1, np.int32)
        for number, (begin, room) in enumerate(self.slots):
            found[begin : begin + room] = number
        return found

    @functools.cached_property
    def place(self) -> np.ndarray:
        """int32 [T], a position's place in its sequence; 0 where it is nobody's."""
        begins = np.asarray([begin for begin, _ in self.slots], np.int32)
        return np.where(self.sequence < 0, 0, np.arange(self.positions, dtype=np.int32) - begins[self.sequence])

    @functools.cached_property
    def _most(self) -> tuple[int, ...]:
        """E of each group, the most sequences of one of its rows."""
        begins, found, first = np.asarray([begin for begin, _ in self.slots]), [], 0
        for rows, length in self.sizes:
            own = begins[(begins >= first) & (begins < first + rows * length)]
            found.append(int(np.bincount((own - first) // length, minlength=1).max()))
            first += rows * length
        return tuple(found)

    @functools.cached_property
    def _first(self) -> np.ndarray:
        """int32 [Q], the first position of each sequence of each row, E a row; of those that are missing the row's."""
        begins, found, first = np.asarray(sorted(begin for begin, _ in self.slots)), [], 0
        for (rows, length), most in zip(self.sizes, self._most, strict=True):
            for begin in range(first, first + rows * length, length):
                own = begins[(begins >= begin) & (begins < begin + length)]
                found.append(np.pad(own, (0, most - len(own)), constant_values=begin))
            first += rows * length
        return np.concatenate(found).astype(np.int32)

    @functools.cached_property
    def _first_of(self) -> np.ndarray:
        """int32 [N], where in `_first` each sequence is."""
        begins = np.asarray([begin for begin, _ in self.slots])
        return _inverse(self._first, self.positions)[begins]

    def together(self, x: jax.Array) -> jax.Array:
        """int [B, S], the sequences of a batch -> [R, T], zeros where nobody is."""
        source = np.where(self.sequence < 0, -1, self.sequence * x.shape[1] + self.place)
        return _at(x.reshape(-1, len(self.slots) * x.shape[1]), source)

    def apart(self, x: jax.Array, length: int) -> jax.Array:
        """[R, T, D] -> [B, S, D] with S = `length`, zeros where there is no room."""
        begins, rooms = np.asarray(self.slots, np.int32).T[..., None]
        places = np.arange(length, dtype=np.int32)
        source = np.where(places < rooms, begins + places, -1).reshape(-1)
        return _taken(x, source).reshape(-1, length, x.shape[-1])

    def firsts(self, x: jax.Array) -> jax.Array:
        """[R, T, ...] -> [R, Q, ...]: the first position of each sequence of each row."""
        return _taken(x, self._first)

    def firsts_apart(self, x: jax.Array) -> jax.Array:
        """[R, Q, D] -> [B, 1, D]."""
        return _taken(x, self._first_of).reshape(-1, 1, x.shape[-1])

    def each(self, x: jax.Array) -> list[jax.Array]:
        """[R, T, ...], or [R, Q, ...] -> of each group [R·rows, length, ...], or [R·rows, E, ...]."""
        widths = [length for _, length in self.sizes] if x.shape[1] == self.positions else self._most
        found, begin = [], 0
        for (rows, _), width in zip(self.sizes, widths, strict=True):
            found.append(x[:, begin : begin + rows * width].reshape(-1, width, *x.shape[2:]))
            begin += rows * width
        return found

    def join(self, parts: Sequence[jax.Array], count: int) -> jax.Array:
        """The inverse of `each`, with R = `count`."""
        return jnp.concatenate([x.reshape(count, -1, *x.shape[2:]) for x in parts], axis=1)

    def alone(self) -> list[bool]:
        """Of each group whether its rows have a sequence each."""
        return [most == 1 for most in self._most]

    def dropout(self, dropout: Dropout) -> Dropout:
        """That of a batch's sequences, numbers [B] -> of the positions, numbers and places [R, T]."""
        numbers = dropout.numbers.reshape(-1, len(self.slots))[:, np.maximum(self.sequence, 0)]
        places = jnp.broadcast_to(self.place.astype(np.uint32), numbers.shape)
        return dropout.replace(numbers=numbers, places=places)


def _inverse(source: np.ndarray, count: int) -> np.ndarray:
    """int32 [count], where each number is in `source` first; -1: nowhere."""
    found = np.full(count, -1, np.int32)
    found[source[::-1]] = np.arange(len(source), dtype=np.int32)[::-1]
    return found


def _at(x: jax.Array, source: np.ndarray) -> jax.Array:
    """[R, P, ...] at these places, [R, len(source), ...]; zeros at -1."""
    found = x[:, np.maximum(source, 0)]
    if (source >= 0).all():
        return found
    return jnp.where((source >= 0).reshape(-1, *[1] * (x.ndim - 2)), found, jnp.zeros((), x.dtype))


def _taken(x: jax.Array, source: np.ndarray) -> jax.Array:
    """`_at`, whose gradient is taken the same way, where autodiff would add rows to zeros one by one.

    A place that is asked for twice has the gradient of the first time.
    """
    back = _inverse(np.where(source < 0, x.shape[1], source), x.shape[1] + 1)[:-1]
    take = jax.custom_vjp(lambda x: _at(x, source))
    take.defvjp(lambda x: (_at(x, source), None), lambda _, cotangent: (_at(cotangent, back),))
    return take(x)
