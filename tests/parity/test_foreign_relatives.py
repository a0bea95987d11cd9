"""Tests that `bertjax.load` of RoBERTa and DistilBERT models gives the results of transformers, also for pairs."""

import json

import numpy as np
import pytest
import transformers
from marks import slow

import bertjax
from bertjax.text.vocabulary import train_byte_bpe, train_wordpiece

FIRST = ['the river runs over stone', 'a bird', 'old houses stand near the river and fall']
SECOND = ['it runs', 'birds sing near the old house', 'stone']
SIZES = {
    'Roberta': dict(  # with two segments, of which only the first is used
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, type_vocab_size=2
    ),
    'DistilBert': dict(dim=32, n_layers=2, n_heads=2, hidden_dim=64),
}


@pytest.mark.parametrize('family', ['Roberta', *slow('DistilBert')])
def test_labels_of_pairs_and_embeddings_are_equal(torch, tmp_path, family):
    torch.manual_seed(0)
    if family == 'Roberta':
        ours = train_byte_bpe([*FIRST, *SECOND] * 5, vocab_size=320, lowercase=False)
    else:
        ours = train_wordpiece([*FIRST, *SECOND] * 5, vocab_size=80, lowercase=True)
    config = getattr(transformers, f'{family}Config')(
        vocab_size=ours.vocab_size, max_position_embeddings=66, pad_token_id=ours.pad_id, initializer_range=0.3,
        num_labels=3, **SIZES[family],
    )  # fmt: skip
    model = getattr(transformers, f'{family}ForSequenceClassification')(config).eval()
    model.save_pretrained(tmp_path)
    ours.save(tmp_path)
    config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
    config['model_input_names'] = ['input_ids', 'attention_mask']
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    bert = bertjax.load(tmp_path)
    assert bert.config.max_positions == (64 if family == 'Roberta' else 66)
    with torch.no_grad():
        inputs = tokenizer(FIRST, SECOND, padding=True, return_tensors='pt')
        theirs = model(**inputs).logits.softmax(-1).numpy()
        inputs = tokenizer(FIRST, padding=True, return_tensors='pt')
        states = model.base_model(**inputs).last_hidden_state.numpy()
    answers = [list(answer['probabilities'].values()) for answer in bert.classify(FIRST, SECOND)]
    np.testing.assert_allclose(answers, theirs, atol=1e-5)
    mask = inputs['attention_mask'].numpy()[..., None]
    np.testing.assert_allclose(bert.encode(FIRST), (states * mask).sum(1) / mask.sum(1), atol=1e-5)
