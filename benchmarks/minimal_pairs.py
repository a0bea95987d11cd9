"""run=minimal_pairs on the CPU: masked sentences per second, compared with the same model in transformers.

    python benchmarks/minimal_pairs.py --data=blimp.jsonl.gz

The script selects pairs at equal distances in the file, and scores both sentences of each pair with bertjax and with a
plain loop in PyTorch. The loop sorts the masked copies of all sentences by length, and pads each batch to its longest
copy. Both programs are called once, because bertjax compiles in the first call, and then in turn. The script prints
masked copies per second of wall time and of CPU time, the ratios, the largest difference of a score, and the number of
pairs that the two decide differently. On a shared machine, compare CPU times, with OMP_WAIT_POLICY=passive so that
PyTorch's threads do not spin. Needs the extra `bench`.

Without --model, the model is a BERT-mini (4 layers, width 256, 30,522 pieces) with random weights.
"""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from absl import app, flags

from bertjax.cores import schedulable_cores
from bertjax.inference.runner import Runner
from bertjax.inference.score import score_minimal_pairs
from bertjax.loading.load_model import LoadedModel, load_model
from bertjax.tasks.minimal_pairs import MinimalPair, encode_pairs, read_pairs
from bertjax.text.vocabulary import train_wordpiece
from bertjax.training.predict import no_op

_MODEL = flags.DEFINE_string('model', '', 'A Hugging Face directory with a masked language model.')
_DATA = flags.DEFINE_string('data', None, 'JSON lines with the fields of BLiMP.', required=True)
_PAIRS = flags.DEFINE_integer('pairs', 2000, 'The number of pairs.')
_BATCH = flags.DEFINE_integer('batch_size', 64, 'The number of masked copies per batch.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'The number of rounds.')
_THREADS = flags.DEFINE_integer('threads', 0, 'The number of threads of PyTorch; 0: the number of cores.')

Scorer = Callable[[], np.ndarray]


def make_model(folder: str, pairs: list[MinimalPair]) -> str:
    """Writes a BERT-mini with random weights and a vocabulary of the pairs to `folder`; returns the folder."""
    tokenizer = train_wordpiece([pair.good for pair in pairs], vocab_size=8000, lowercase=True)
    torch.manual_seed(0)
    sizes = {'hidden_size': 256, 'num_hidden_layers': 4, 'num_attention_heads': 4, 'intermediate_size': 1024}
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(folder)
    tokenizer.save(pathlib.Path(folder))
    return folder


def our_scorer(model: LoadedModel, sequences: list[np.ndarray]) -> Scorer:
    """Returns a function that computes the scores with bertjax, float64 [N, 2]."""
    runner = Runner(model, batch_size=_BATCH.value)

    def score() -> np.ndarray:
        return score_minimal_pairs(runner, sequences, no_op)

    return score


def torch_scorer(directory: str, sequences: list[np.ndarray], mask_id: int) -> Scorer:
    """Returns a function that computes the scores with PyTorch, float64 [N, 2]."""
    torch.set_num_threads(_THREADS.value or schedulable_cores())
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    copies = [(row, position) for row, ids in enumerate(sequences) for position in range(1, len(ids) - 1)]
    copies.sort(key=lambda copy: len(sequences[copy[0]]))

    @torch.inference_mode()
    def score() -> np.ndarray:
        total = np.zeros(len(sequences))
        for start in range(0, len(copies), _BATCH.value):
            batch = copies[start : start + _BATCH.value]
            rows, positions = zip(*batch, strict=True)
            ids = [torch.from_numpy(sequences[row]).long() for row in rows]
            inputs = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            attention = torch.nn.utils.rnn.pad_sequence([torch.ones_like(x) for x in ids], batch_first=True)
            each, masked = torch.arange(len(batch)), torch.tensor(positions)
            targets = inputs[each, masked]
            inputs[each, masked] = mask_id
            logits = model(input_ids=inputs, attention_mask=attention).logits[each, masked]
            scores = logits.log_softmax(-1)[each, targets].double().numpy()
            np.add.at(total, list(rows), scores)
        return total.reshape(-1, 2)

    return score


def timed(score: Scorer) -> tuple[np.ndarray, float, float]:
    """Returns the scores, the wall time and the CPU time in seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    scores = score()
    return scores, time.perf_counter() - clock, time.process_time() - processor


def main(argv: list[str]) -> None:
    del argv
    pairs = read_pairs(_DATA.value, '--data')
    pairs = pairs[:: max(1, len(pairs) // _PAIRS.value)][: _PAIRS.value]
    with tempfile.TemporaryDirectory() as folder:
        directory = _MODEL.value or make_model(folder, pairs)
        model = load_model(directory)
        sequences = encode_pairs(pairs, model.tokenizer, model.config.max_positions)
        theirs = torch_scorer(directory, sequences, model.tokenizer.mask_id)
        scorers = {'bertjax': our_scorer(model, sequences), 'transformers': theirs}
    copies = sum(len(ids) - 2 for ids in sequences)
    print(f'{len(pairs):,} pairs, {copies:,} masked copies, {schedulable_cores()} cores', flush=True)
    scores, times = {}, {name: [] for name in scorers}
    for name, score in scorers.items():
        scores[name], clock, processor = timed(score)
        print(f'{name:>12}: first call {clock:.1f} s, CPU time {processor:.1f} s', flush=True)
    for _ in range(_ROUNDS.value):
        for name, score in scorers.items():
            times[name].append(timed(score)[1:])
    for name, rounds in times.items():
        rates = [copies / statistics.median(kind) for kind in zip(*rounds, strict=True)]
        print(f'{name:>12}: {rates[0]:,.0f} masked copies/s (median), {rates[1]:,.0f} per second of CPU time')
    rounds = zip(times['transformers'], times['bertjax'], strict=True)
    ratios = zip(*([a / b for a, b in zip(*pair, strict=True)] for pair in rounds), strict=True)
    clock, processor = map(statistics.median, ratios)
    a, b = scores.values()
    different = ((a[:, 0] > a[:, 1]) != (b[:, 0] > b[:, 1])).sum()
    print(
        f'bertjax is {clock:.2f} times as fast, {processor:.2f} by CPU time; largest difference of a score '
        f'{np.abs(a - b).max():.1e}; {different} pairs decided differently'
    )


if __name__ == '__main__':
    app.run(main)
