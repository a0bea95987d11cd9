"""Pre-trains a masked language model as transformers' run_mlm.py does with its defaults, for benchmarks/ladder.py.

    python benchmarks/peers/masked_lm.py FOLDER SETTINGS

SETTINGS is JSON with the keys model (bert or modernbert), layers, width, heads, corpus, tokenizer, seq_len, steps and
seed. As in run_mlm.py, the lines with their special tokens are concatenated and cut into rows, without padding, and
15 % of the pieces are masked. The defaults of its Trainer are batches of 8, AdamW with a rate of 5e-5 that falls
linearly to 0, and no warm-up. FOLDER gets the model, its tokenizer, and seconds.json with the time of each step.
"""

import glob
import gzip
import json
import pathlib
import sys
import time
from typing import Any

import numpy as np
import torch
import transformers

from bertjax.cores import schedulable_cores
from bertjax.pretrain.budget_choice import gated_width


class _Clock(transformers.TrainerCallback):
    def __init__(self):
        self.times = [time.perf_counter()]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())


class _Rows(torch.utils.data.Dataset):
    """The rows of an array int[rows, seq_len], as the collator of transformers expects them."""

    def __init__(self, rows: np.ndarray):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return {'input_ids': self._rows[i]}


def _rows(corpus: str, tokenizer: Any, seq_len: int) -> np.ndarray:
    """Returns int[rows, seq_len], the pieces of all lines of the files `corpus`."""
    pieces: list[int] = []
    for path in sorted(glob.glob(corpus)):
        with (gzip.open if path.endswith('.gz') else open)(path, 'rt', encoding='utf-8') as file:
            lines = [line.rstrip('\n') for line in file if line.strip()]
        for ids in tokenizer(lines, truncation=False)['input_ids']:
            pieces.extend(ids)
    return np.asarray(pieces[: len(pieces) // seq_len * seq_len], np.int64).reshape(-1, seq_len)


def _model(settings: dict[str, Any], vocab_size: int) -> Any:
    size = {
        'vocab_size': vocab_size, 'num_hidden_layers': settings['layers'], 'hidden_size': settings['width'],
        'num_attention_heads': settings['heads'],
    }  # fmt: skip
    if settings['model'] == 'bert':
        return transformers.BertForMaskedLM(transformers.BertConfig(intermediate_size=4 * settings['width'], **size))
    special = {f'{name}_token_id': settings[name] for name in ('pad', 'cls', 'sep', 'bos', 'eos')}
    config = transformers.ModernBertConfig(intermediate_size=gated_width(settings['width']), **special, **size)
    return transformers.ModernBertForMaskedLM(config)


def main(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Trains, and writes the results to `folder`."""
    torch.set_num_threads(schedulable_cores())
    transformers.set_seed(settings['seed'])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings['tokenizer'])
    settings |= {'pad': tokenizer.pad_token_id, 'cls': tokenizer.cls_token_id, 'sep': tokenizer.sep_token_id}
    settings |= {'bos': tokenizer.cls_token_id, 'eos': tokenizer.sep_token_id}
    model, clock = _model(settings, len(tokenizer)), _Clock()
    arguments = transformers.TrainingArguments(
        str(folder / 'trainer'), max_steps=settings['steps'], seed=settings['seed'], save_strategy='no',
        report_to='none', disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    rows = _Rows(_rows(settings['corpus'], tokenizer, settings['seq_len']))
    transformers.Trainer(model, arguments, collator, rows, callbacks=[clock]).train()
    model.save_pretrained(folder / 'model')
    tokenizer.save_pretrained(folder / 'model')
    (folder / 'seconds.json').write_text(json.dumps(np.diff(clock.times).tolist()))


if __name__ == '__main__':
    main(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))
