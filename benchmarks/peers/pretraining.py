"""Training steps of transformers' BertForPreTraining. The fastest options are default: compiled, SDPA, autocast."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import transformers

from bertjax.model.config import SIZES

Inputs = dict[str, torch.Tensor]


def missing_device(device: str) -> str:
    """Returns the reason why PyTorch cannot use 'cuda' or 'cpu'; '' if it can."""
    if device == 'cuda' and not torch.cuda.is_available():
        return f'torch {torch.__version__} finds no GPU'
    return ''


def versions() -> str:
    return f'torch {torch.__version__}, transformers {transformers.__version__}'


def make_step(
    size: str, device: str, *, compiled: bool = True, attention: str = 'sdpa', autocast: bool = True
) -> Callable[[Inputs], float]:
    """Returns a function that runs a training step with dropout, waits for it, and returns the loss.

    Args:
      size: The name of the model in `SIZES`.
      device: 'cuda' or 'cpu'.
      compiled: Whether to use torch.compile.
      attention: 'eager' or 'sdpa'.
      autocast: Whether to compute in bfloat16 by autocast.
    """
    dims = SIZES[size]
    config = transformers.BertConfig(
        hidden_size=dims['width'],
        num_hidden_layers=dims['num_layers'],
        num_attention_heads=dims['num_heads'],
        intermediate_size=dims['mlp_dim'],
        attn_implementation=attention,
    )
    if device == 'cuda':
        torch.set_float32_matmul_precision('high')
    model = transformers.BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, eps=1e-6, fused=device == 'cuda')
    run = torch.compile(model) if compiled else model

    def step(inputs: Inputs) -> float:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = run(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == 'cuda':
            torch.cuda.synchronize()
        return loss.item()

    return step


def model_inputs(batch: Mapping[str, np.ndarray], device: str) -> Inputs:
    """Returns the keyword arguments of the model for an unpacked batch.

    If no row is padded, there is no attention mask, so that PyTorch can use its fastest kernel.
    """
    on_device = {name: torch.from_numpy(x).to(device) for name, x in batch.items()}
    labels = torch.full(on_device['input_ids'].shape, -100, device=device)
    positions, used = on_device['masked_positions'].long(), on_device['masked_weights'] > 0
    rows = torch.arange(len(labels), device=device)[:, None].expand_as(positions)
    labels[rows[used], positions[used]] = on_device['masked_ids'].long()[used]
    has_label = on_device['nsp_weights'] > 0
    return {
        'input_ids': on_device['input_ids'],
        'token_type_ids': on_device['segment_ids'],
        'labels': labels,
        'next_sentence_label': torch.where(has_label, on_device['nsp_labels'].long(), -100),
        **({} if batch['attention_mask'].all() else {'attention_mask': on_device['attention_mask']}),
    }
