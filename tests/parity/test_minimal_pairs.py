"""Tests run=minimal_pairs on BLiMP against a plain loop over transformers."""

import gzip
import json

import numpy as np
import pytest
import transformers

from bertjax.commands import minimal_pairs
from bertjax.config.files import load_recipe
from bertjax.text.vocabulary import train_byte_bpe, train_wordpiece

SMALL = {'hidden_size': 32, 'num_hidden_layers': 3, 'num_attention_heads': 2, 'initializer_range': 0.15}
MODERN = {**SMALL, 'intermediate_size': 48, 'local_attention': 8}
CONFIGS = {
    'Bert': ('BertForMaskedLM', {**SMALL, 'intermediate_size': 64}),
    'ModernBert': ('ModernBertForMaskedLM', MODERN),
    'Roberta': ('RobertaForMaskedLM', {**SMALL, 'intermediate_size': 64, 'type_vocab_size': 1}),
}


@pytest.fixture(scope='module')
def blimp(shared):
    with gzip.open(shared / 'blimp' / 'blimp.jsonl.gz', 'rt', encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def scores(torch, model, tokenizer, sentence: str) -> float:
    """Returns the pseudo-log-likelihood of a sentence, from a batch with one masked copy for each of its tokens."""
    ids = torch.tensor(tokenizer(sentence)['input_ids'])
    positions = torch.arange(1, len(ids) - 1)
    copies = ids.repeat(len(positions), 1)
    copies[torch.arange(len(positions)), positions] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = model(input_ids=copies).logits.double().log_softmax(-1)
    return logits[torch.arange(len(positions)), positions, ids[positions]].sum().item()


@pytest.mark.slow
@pytest.mark.parametrize('family', CONFIGS)
def test_sums_and_decisions_are_equal(torch, blimp, tmp_path, family):
    pairs = blimp[:: len(blimp) // 67]  # one of each set
    text = [record[name] for record in pairs for name in ('sentence_good', 'sentence_bad')]
    if family == 'Bert':
        ours = train_wordpiece(text, vocab_size=500, lowercase=True)
    else:
        ours = train_byte_bpe(text, vocab_size=500, lowercase=False)
    kind, sizes = CONFIGS[family]
    special = {f'{name}_token_id': getattr(ours, f'{name}_id') for name in ('pad', 'cls', 'sep')}
    special |= {'bos_token_id': ours.cls_id, 'eos_token_id': ours.sep_id}
    config = getattr(transformers, f'{family}Config')(
        vocab_size=ours.vocab_size, max_position_embeddings=130, attn_implementation='eager', **special, **sizes
    )
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).float().eval()
    model.save_pretrained(tmp_path / 'model')
    ours.save(tmp_path / 'model')
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model')
    expected = np.array([scores(torch, model, tokenizer, sentence) for sentence in text]).reshape(-1, 2)

    path = tmp_path / 'few.jsonl'
    path.write_text(''.join(json.dumps(record) + '\n' for record in pairs), encoding='utf-8')
    config = load_recipe('configs/minimal_pairs.py')
    config.init, config.input = str(tmp_path / 'model'), str(path)
    minimal_pairs.run(config, str(tmp_path / 'out'))
    lines = (tmp_path / 'out' / 'minimal_pairs' / 'few.jsonl').read_text(encoding='utf-8').splitlines()
    rows = [json.loads(line) for line in lines]
    np.testing.assert_allclose([[row['good_score'], row['bad_score']] for row in rows], expected, atol=1e-4, rtol=0)
    correct = expected[:, 0] > expected[:, 1]
    assert [row['correct'] for row in rows] == correct.tolist()
    facts = json.loads((tmp_path / 'out' / 'minimal_pairs' / 'few.json').read_text(encoding='utf-8'))
    assert facts['share'] == pytest.approx(correct.mean()) and facts['ties'] == 0 and len(facts['sets']) == 67
    assert np.abs(expected[:, 0] - expected[:, 1]).std() > 0.01
