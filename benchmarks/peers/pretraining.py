"""transformers' BertForPreTraining as it trains fastest: compiled, SDPA, bfloat16 by autocast, fused AdamW."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
import transformers

from bertjax.model.config import SIZES


def why_not(device: str) -> str:
    """Why it cannot run on 'cuda' or 'cpu'; '' where it can."""
    if device == 'cuda' and not torch.cuda.is_available():
        return f'torch {torch.__version__} finds no GPU'
    return ''


def versions() -> str:
    """Of what runs."""
    return f'torch {torch.__version__}, transformers {transformers.__version__}'


def make_step(size: str, batch: Mapping[str, np.ndarray], device: str, compiled: bool = True) -> Callable[[], float]:
    """A function that takes one step with dropout, waits for it, and returns the loss.

    Args:
      size: of `SIZES`.
      batch: of `batches.random_batch`, not packed: without padding, so that it is given no attention mask, and may take
        its fastest kernel.
      device: 'cuda' or 'cpu'.
      compiled: by torch.compile.
    """
    dims, (rows, seq_len) = SIZES[size], batch['input_ids'].shape
    config = transformers.BertConfig(
        hidden_size=dims['width'],
        num_hidden_layers=dims['num_layers'],
        num_attention_heads=dims['num_heads'],
        intermediate_size=dims['mlp_dim'],
        attn_implementation='sdpa',
    )
    torch.set_float32_matmul_precision('high')
    model = transformers.BertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, eps=1e-6, fused=device == 'cuda')
    given = {name: torch.from_numpy(x).to(device) for name, x in batch.items()}
    labels = torch.full((rows, seq_len), -100, device=device)
    labels.scatter_(1, given['masked_positions'].long(), given['masked_ids'].long())
    run = torch.compile(model) if compiled else model

    def step() -> float:
        with torch.autocast(device, torch.bfloat16):
            loss = run(
                input_ids=given['input_ids'],
                token_type_ids=given['segment_ids'],
                labels=labels,
                next_sentence_label=given['nsp_labels'].long(),
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == 'cuda':
            torch.cuda.synchronize()
        return loss.item()

    return step
