"""RoBERTa and DistilBERT from text or a checkpoint to predictions, which agree with transformers."""

import json
import pathlib

import numpy as np
import pytest
from running import GLUE, ONE_LENGTH, TUNE, Program, rows

BPE = (
    '--config.vocab.family=bpe',
    '--config.vocab.lowercase=False',
    '--config.pairs.mode=full_sentences',
    '--config.model.num_segments=1',
    '--config.model.layer_norm_eps=1e-5',
)
FEW = (*TUNE, ONE_LENGTH, '--config.steps=6', '--config.epochs=1', '--config.eval_every=6')


def _predict_with_transformers(directory: pathlib.Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    import torch

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    first, second = map(list, zip(*pairs, strict=True))
    inputs = tokenizer(first, second, truncation=True, max_length=24, padding=True, return_tensors='pt')
    with torch.no_grad():
        return model(**inputs).logits.softmax(-1).numpy()


def _tune_and_compare(program: Program, rte: pathlib.Path, workdir: pathlib.Path, init: pathlib.Path) -> str:
    """Tunes to RTE, predicts dev and compares with transformers; returns the printed text of the training."""
    flags = (f'--config.init={init}', f'--config.data={rte}', f'--workdir={workdir}', *FEW)
    out = program.run(*flags, **GLUE).stdout
    program.run(*flags, '--config.run=predict', **GLUE)
    predictions = rows(workdir / 'predictions' / 'dev.jsonl')
    names = list(predictions[0]['probabilities'])
    lines = [line.split('\t') for line in (rte / 'dev.tsv').read_text().splitlines()[1:]]
    expected = _predict_with_transformers(workdir / 'export' / 'hf', [(line[1], line[2]) for line in lines])
    probabilities = np.array([[row['probabilities'][name] for name in names] for row in predictions])
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    return out


@pytest.mark.slow
def test_roberta_predictions_agree_with_transformers(program: Program, rte: pathlib.Path, tmp_path: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    first, second, tuned = tmp_path / 'first', tmp_path / 'second', tmp_path / 'tuned'
    program.run(f'--workdir={first}', '--config.steps=4', *BPE)
    exported = first / 'export' / 'hf'
    assert json.loads((exported / 'config.json').read_text())['architectures'] == ['RobertaForMaskedLM']
    _, info = transformers.RobertaForMaskedLM.from_pretrained(exported, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys']
    start = (f'--config.init={exported}', '--config.steps=1', '--config.export=False')
    out = program.run(f'--workdir={second}', *start, *BPE[2:4]).stdout
    assert 'of its RobertaForMaskedLM loaded; newly initialized: nothing' in out and 'not used' not in out
    assert 'config.model.layer_norm_eps is 1e-12, but 1e-05 in the checkpoint' in out
    adapt = (f'--workdir={tmp_path}/adapted', f'--config.init={exported}', f'--config.corpus={program.corpus}')
    adapt = (*adapt, '--config.steps=1', '--config.batch_size=8', '--config.eval_examples=8')
    program.run(*adapt, '--config.seq_len=32', recipe='configs/adapt.py', small=False)
    facts = json.loads((tmp_path / 'adapted/export/hf/config.json').read_text())
    assert facts['architectures'] == ['RobertaForMaskedLM']
    line = program.error(*adapt, '--config.seq_len=600', recipe='configs/adapt.py', small=False)
    assert line.endswith('expected at most config.model.max_positions = 512; lower it')
    out = _tune_and_compare(program, rte, tuned, first)
    assert 'newly initialized: head/bias, head/kernel, pooler/bias, pooler/kernel' in out
    assert 'not used: lm_head.bias, lm_head.dense.bias' in out
    facts = json.loads((tuned / 'export' / 'hf' / 'config.json').read_text())
    assert facts['architectures'] == ['RobertaForSequenceClassification'] and facts['max_position_embeddings'] == 514


@pytest.mark.slow
def test_distilbert_predictions_agree_with_transformers(
    program: Program, rte: pathlib.Path, trained: pathlib.Path, tmp_path: pathlib.Path
):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / 'export' / 'hf')
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
    )
    start = tmp_path / 'start'
    transformers.DistilBertForMaskedLM(config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    out = _tune_and_compare(program, rte, tmp_path / 'tuned', start)
    assert 'of its DistilBertForMaskedLM loaded; newly initialized: head/bias, head/kernel, pooler' in out
    facts = json.loads((tmp_path / 'tuned' / 'export' / 'hf' / 'config.json').read_text())
    assert facts['architectures'] == ['DistilBertForSequenceClassification'] and facts['dim'] == 32
