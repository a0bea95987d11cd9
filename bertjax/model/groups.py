"""A batch's sequences one after the other in a row, in groups of one padded length each: one program, little padding.

All that is computed position by position takes the row as it is; attention takes each group by itself, as it would take
a batch of that length. What a sequence gives is what it gives in a batch of its own, up to rounding, dropout included.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model.dropout import Dropout


@dataclasses.dataclass(frozen=True)
class Groups:
    """How N rows of a batch, of C sequences each, are one row of positions.

    A batch of R·N rows has R such rows: those of each device, and of each part of an accumulation, are alike.

    Attributes:
      order: [N], the rows in the order in which they are in it.
      sizes: of each group, how many of these rows it has, and the padded length of their sequences.
      choices: C.
    """

    order: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    choices: int = 1

    @property
    def _cuts(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each group: its first sequence, how many it has, its first position, its length."""
        sequence = position = 0
        for rows, length in self.sizes:
            count = rows * self.choices
            yield sequence, count, position, length
            sequence, position = sequence + count, position + count * length

    @property
    def positions(self) -> int:
        """T, of all groups."""
        return sum(rows * self.choices * length for rows, length in self.sizes)

    def each(self, x: jax.Array) -> list[jax.Array]:
        """[R, T, ...] -> of each group [R·sequences, length, ...]."""
        return [
            x[:, begin : begin + count * length].reshape(-1, length, *x.shape[2:])
            for _, count, begin, length in self._cuts
        ]

    def each_sequence(self, x: jax.Array) -> list[jax.Array]:
        """[R, N·C, ...], a value a sequence -> of each group [R·sequences, 1, ...]."""
        return [x[:, first : first + count].reshape(-1, 1, *x.shape[2:]) for first, count, _, _ in self._cuts]

    def join(self, parts: Sequence[jax.Array], rows: int) -> jax.Array:
        """The inverse of `each`, and of `each_sequence`, where R = `rows`."""
        return jnp.concatenate([x.reshape(rows, -1, *x.shape[2:]) for x in parts], axis=1)

    def firsts(self, x: jax.Array) -> jax.Array:
        """[R, T, ...] -> [R, N·C, ...]: the first position of each sequence."""
        return self.join([part[:, :1] for part in self.each(x)], len(x))

    def together(self, x: jax.Array) -> jax.Array:
        """[B·C, S], the sequences of a batch -> [R, T], without what follows the length of their group."""
        rows = x.reshape(-1, len(self.order), self.choices * x.shape[1])[:, np.asarray(self.order)]
        rows = rows.reshape(len(rows), -1, x.shape[1])  # [R, N·C, S]
        parts = [rows[:, first : first + count, :length] for first, count, _, length in self._cuts]
        return jnp.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)

    def apart(self, x: jax.Array, length: int) -> jax.Array:
        """[R, T, D] -> [B·C, S, D] with S = `length`, zeros where the groups have no positions."""
        parts = [jnp.pad(part, ((0, 0), (0, length - part.shape[1]), (0, 0))) for part in self.each(x)]
        whole = jnp.concatenate([part.reshape(len(x), -1, *part.shape[1:]) for part in parts], axis=1)
        return self._in_order(whole).reshape(-1, *whole.shape[2:])

    def firsts_apart(self, x: jax.Array) -> jax.Array:
        """[R, N·C, D] -> [B·C, 1, D]."""
        return self._in_order(x).reshape(-1, 1, x.shape[-1])

    def _in_order(self, x: jax.Array) -> jax.Array:
        """[R, N·C, ...], in the order of the groups -> in that of the batch."""
        rows = x.reshape(len(x), len(self.order), self.choices, *x.shape[2:])
        return _permuted(rows, self.order).reshape(x.shape)

    def dropout(self, dropout: Dropout) -> Dropout:
        """That of the sequences of a batch, numbers [B·C] -> of their positions in the row, numbers and places [R, T]."""
        numbers = dropout.numbers.reshape(-1, len(self.order), self.choices)[:, np.asarray(self.order)]
        numbers = numbers.reshape(len(numbers), -1)
        parts = [
            jnp.repeat(numbers[:, first : first + count], length, axis=1) for first, count, _, length in self._cuts
        ]
        places = np.concatenate([np.tile(np.arange(length), count) for _, count, _, length in self._cuts])
        numbers = jnp.concatenate(parts, axis=1)
        return dropout.replace(numbers=numbers, places=jnp.broadcast_to(places.astype(np.uint32), numbers.shape))

    def each_dropout(self, dropout: Dropout | None) -> list[Dropout | None]:
        """Of positions -> of each group's sequences."""
        if dropout is None:
            return [None] * len(self.sizes)
        return [dropout.replace(numbers=part[:, 0], places=None) for part in self.each(dropout.numbers)]

    def first_dropout(self, dropout: Dropout | None) -> Dropout | None:
        """Of positions -> of the first position of each sequence."""
        if dropout is None:
            return None
        numbers = self.firsts(dropout.numbers)
        return dropout.replace(numbers=numbers, places=jnp.zeros_like(numbers))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _permuted(x: jax.Array, order: tuple[int, ...]) -> jax.Array:
    """[R, N, ...], the rows `order` -> the rows 0, 1, ...; backwards a permutation, too, where autodiff scatters."""
    return x[:, np.argsort(order)]


_permuted.defvjp(
    lambda x, order: (_permuted(x, order), None), lambda order, _, cotangent: (cotangent[:, np.asarray(order)],)
)
