"""Small sharded states with every dtype of a train state."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.parallel.mesh import make_mesh

CONFIG = {'model': {'width': 32}, 'batch_size': 16, 'fingerprints': {'store': 'abc'}}


def mesh_of(data=1, fsdp=1, tensor=1):
    devices = jax.devices()[: data * fsdp * tensor]
    return make_mesh({'data': data, 'fsdp': fsdp, 'tensor': tensor}, devices)


def template_on(mesh):
    def leaf(shape, dtype, *spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    return {
        'step': leaf((), jnp.int32),
        'params': {
            'kernel': leaf((16, 8), jnp.float32, 'fsdp', 'tensor'),
            'half': leaf((8, 8), jnp.bfloat16, 'fsdp'),
            'bias': leaf((8,), jnp.float32),
            'spread': leaf((8, 16), jnp.float32, 'data'),
        },
        'opt_state': [{'count': leaf((), jnp.int32), 'mu': leaf((16, 8), jnp.float32, 'fsdp')}, None],
    }


def state_at(step, mesh=None):
    """Returns random arrays, including denormals and negative zeros, seeded with `step`."""
    rng = np.random.default_rng(step)

    def draw(leaf):
        if leaf.dtype == jnp.int32:
            return jax.device_put(np.int32(step), leaf.sharding)
        bits = rng.normal(size=leaf.shape) * 10.0 ** rng.integers(-40, 30, leaf.shape)
        bits.flat[0] = -0.0
        return jax.device_put(bits.astype(leaf.dtype), leaf.sharding)

    return jax.tree.map(draw, template_on(mesh or mesh_of()))


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
