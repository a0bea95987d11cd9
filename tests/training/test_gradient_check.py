"""The gradient check: its stored digits are correct, and a wrong gradient stops the run."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
import torch

from bertjax.errors import UserError
from bertjax.training.health import gradient_check


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Resets the check, as in a new process."""
    gradient_check.check_gradients.cache_clear()
    yield
    gradient_check.check_gradients.cache_clear()


def test_the_stored_digits_agree_with_pytorch():
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in gradient_check.arguments(np.float64).items()}
    x = 4 * tensors['x']
    query, key, value = (torch.einsum('bsd,dhk->bhsk', x, tensors[name]) for name in ('query', 'key', 'value'))
    mask = (
        torch.arange(gradient_check.LENGTH)
        < torch.tensor([gradient_check.LENGTH, gradient_check.LENGTH - 5, 2])[:, None]
    )
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
    x = x + torch.einsum('bhsk,hkd->bsd', mixed, tensors['output'])
    x = torch.nn.functional.layer_norm(x, (gradient_check.WIDTH,), eps=1e-6) * (1 + tensors['scale'])
    y = x + torch.nn.functional.gelu(x @ tensors['up']) @ tensors['down']
    (torch.logsumexp(y, -1) - y[..., 0]).sum().backward()
    digits = gradient_check.summarize_gradient({name: x.grad.numpy() for name, x in tensors.items()})
    assert digits.keys() == gradient_check.EXPECTED.keys() == gradient_check.SHAPES.keys()
    for name, (norm, product) in gradient_check.EXPECTED.items():
        assert digits[name] == pytest.approx((norm, product), abs=1e-6 * norm), name


def test_this_compiler_passes(unchecked):
    gradient_check.check_gradients()


@pytest.mark.parametrize('wrong', [lambda g: g * 1.01, lambda g: g * jnp.nan, lambda g: g[::-1]])
def test_a_wrong_gradient_is_refused_by_name(unchecked, monkeypatch: pytest.MonkeyPatch, wrong):
    """Only the gradient of one parameter is wrong, so the loss stays the same."""
    grad = jax.grad(gradient_check.loss)
    monkeypatch.setattr(gradient_check.jax, 'grad', lambda f: lambda x: {**grad(x), 'up': wrong(grad(x)['up'])})
    with pytest.raises(UserError, match='with respect to up ') as refused:
        gradient_check.check_gradients()
    assert refused.value.where == f'jaxlib {jaxlib.__version__} on cpu'
