"""transformers' BertForPreTraining in training, by default as it is fastest: compiled, SDPA, bfloat16 by autocast."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import transformers

from bertjax.model.config import SIZES

Given = dict[str, torch.Tensor]


def why_not(device: str) -> str:
    """Why it cannot run on 'cuda' or 'cpu'; '' where it can."""
    if device == 'cuda' and not torch.cuda.is_available():
        return f'torch {torch.__version__} finds no GPU'
    return ''


def versions() -> str:
    """Of what runs."""
    return f'torch {torch.__version__}, transformers {transformers.__version__}'


def make_step(
    size: str, device: str, *, compiled: bool = True, attention: str = 'sdpa', autocast: bool = True
) -> Callable[[Given], float]:
    """A function of `given` that takes one step with dropout, waits for it, and returns the loss.

    Args:
      size: of `SIZES`.
      device: 'cuda' or 'cpu'.
      compiled: by torch.compile.
      attention: 'eager' or 'sdpa'.
      autocast: to bfloat16.
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

    def step(given: Given) -> float:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = run(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == 'cuda':
            torch.cuda.synchronize()
        return loss.item()

    return step


def given(batch: Mapping[str, np.ndarray], device: str) -> Given:
    """What the model is called with for a batch that is not packed.

    Where no row is padded that is no attention mask, so that it may take its fastest kernel.
    """
    on_device = {name: torch.from_numpy(x).to(device) for name, x in batch.items()}
    labels = torch.full(on_device['input_ids'].shape, -100, device=device)
    positions, used = on_device['masked_positions'].long(), on_device['masked_weights'] > 0
    rows = torch.arange(len(labels), device=device)[:, None].expand_as(positions)
    labels[rows[used], positions[used]] = on_device['masked_ids'].long()[used]
    judged = on_device['nsp_weights'] > 0
    return {
        'input_ids': on_device['input_ids'],
        'token_type_ids': on_device['segment_ids'],
        'labels': labels,
        'next_sentence_label': torch.where(judged, on_device['nsp_labels'].long(), -100),
        **({} if batch['attention_mask'].all() else {'attention_mask': on_device['attention_mask']}),
    }
