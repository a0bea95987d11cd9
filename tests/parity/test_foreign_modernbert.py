"""Tests that `bertjax.load` of a ModernBERT with any of its tokenizers gives the results of transformers."""

from pydoc_data.topics import topics

import numpy as np
import pytest
from json_tokenizers import write_modernbert
from marks import slow

import bertjax
from bertjax.errors import UserError

LINES = [line for topic in sorted(topics) for line in topics[topic].split('\n\n') if line.strip()]


@pytest.fixture(scope='module', params=['modern', *slow('gemma', 'unigram', 'llama')])
def models(request, torch, tmp_path_factory):
    """Returns (our model, transformers' model, transformers' tokenizer) for the parameter's kind of tokenizer."""
    import transformers

    directory = tmp_path_factory.mktemp(request.param)
    model = write_modernbert(request.param, [*LINES[:1000], 'naïve café'], directory)
    return bertjax.load(directory), model, transformers.AutoTokenizer.from_pretrained(directory)


def test_filled_masks_are_equal(torch, models):
    bert, model, tokenizer = models
    texts = [f'The value of the {tokenizer.mask_token} is returned.', f'a {tokenizer.mask_token}']
    texts += [f'{tokenizer.mask_token} statement', f'an {tokenizer.mask_token} and some {tokenizer.mask_token} here']
    if bert.tokenizer.word_prefix:  # Other tokenizers put a space before the comma, which `fill` removes.
        texts.append(f'an {tokenizer.mask_token}, and')
    for text in texts:
        inputs = tokenizer(text, return_tensors='pt')
        masks = (inputs['input_ids'][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        with torch.no_grad():
            best = model(**inputs).logits[0, masks].softmax(-1)[:, : len(tokenizer)].topk(4)
        ours = bert.fill(text, top_k=4)
        for answers, probabilities, ids in zip(ours if len(masks) > 1 else [ours], *best, strict=True):
            assert [answer['token'] for answer in answers] == tokenizer.convert_ids_to_tokens(ids)
            np.testing.assert_allclose([answer['probability'] for answer in answers], probabilities, atol=1e-5)


def test_pairs_are_encoded_without_segments(torch, models):
    bert, model, tokenizer = models
    first, second = ['A house.', ' naïve café ', 'The list:\n  a   b', LINES[7]], ['x', LINES[3], '', 'The end.']
    inputs = tokenizer(first, second, padding=True, truncation=True, max_length=64, return_tensors='pt')
    assert 'token_type_ids' not in inputs and inputs['input_ids'].shape[1] == 64
    with torch.no_grad():
        states = model.model(**inputs).last_hidden_state.numpy()
    real = inputs['attention_mask'].numpy() > 0
    for row, ours in enumerate(bert.encode(first, pairs=second, pool='none')):
        np.testing.assert_allclose(ours, states[row][real[row]], atol=1e-5)
    pieces = bert.pieces(first, pairs=second)
    assert [tokenizer.convert_tokens_to_ids(row) for row in pieces] == [
        ids[mask].tolist() for ids, mask in zip(inputs['input_ids'].numpy(), real, strict=True)
    ]


def test_attention_is_equal_and_has_windows(torch, models):
    bert, model, tokenizer = models
    text = LINES[5][:100]
    with torch.no_grad():
        theirs = model.model(**tokenizer(text, return_tensors='pt'), output_attentions=True).attentions
    ours = bert.attention(text).weights
    np.testing.assert_allclose(ours, np.stack([layer[0].numpy() for layer in theirs]), atol=1e-5)
    assert (np.asarray(ours[1]) == 0).any() and not (np.asarray(ours[0]) == 0).any()


def test_bfloat16_files_are_read_and_written_unchanged_and_nan_is_refused(torch, tmp_path):
    """Another program had NaN logits after a conversion (AnswerDotAI/ModernBERT#209)."""
    import safetensors.torch
    import transformers

    source, saved = tmp_path / 'source', tmp_path / 'saved'
    source.mkdir()
    model = write_modernbert('modern', LINES[:300], source, size=400)
    model.config.update(rates := {'embedding_dropout': 0.1, 'mlp_dropout': 0.2, 'classifier_dropout': 0.3})
    model.to(torch.bfloat16).save_pretrained(source)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    text = f'the value is {tokenizer.mask_token}'
    # The model is loaded again, because `model.float()` would keep the rounded rotations.
    model = transformers.AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        states = model.model(**tokenizer(text, return_tensors='pt')).last_hidden_state[0].numpy()
    bert = bertjax.load(source)
    np.testing.assert_allclose(bert.encode(text, pool='none'), states, atol=1e-5)
    bert.save(saved)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(saved, output_loading_info=True)
    assert theirs.dtype == torch.bfloat16 and not any(info.values())
    assert {name: getattr(theirs.config, name) for name in rates} == rates
    bertjax.load(source, dropout=0.5).save(tmp_path / 'changed')
    changed = transformers.AutoConfig.from_pretrained(tmp_path / 'changed')
    assert {getattr(changed, name) for name in rates} == {0.5}
    again, first = theirs.state_dict(), model.to(torch.bfloat16).state_dict()
    assert again.keys() == first.keys() and all(torch.equal(again[name], first[name]) for name in first)
    assert transformers.AutoTokenizer.from_pretrained(saved)(text) == tokenizer(text)

    tensors = safetensors.torch.load_file(source / 'model.safetensors')
    tensors['model.layers.1.attn.Wqkv.weight'][3, 4] = float('nan')
    safetensors.torch.save_file(tensors, source / 'model.safetensors', {'format': 'pt'})
    with pytest.raises(UserError, match=r'model\.layers\.1\.attn\.Wqkv\.weight: found 1 values that are nan or inf'):
        bertjax.load(source)
