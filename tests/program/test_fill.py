"""run=fill and `bertjax.load`: words for masks, scores of texts, sentence pairs and continuations."""

import contextlib
import json
import math
import pathlib

import numpy as np
import pytest
from running import Program, rows

import bertjax
from bertjax import progress
from bertjax.errors import UserError
from bertjax.inference.score import corpus_score

RECIPE = {'recipe': 'configs/fill.py', 'small': False}
TEXTS = ['the river [MASK] under the house.', 'a [MASK] sings [MASK] the old [MASK] and runs', 'stone [MASK]']


@pytest.fixture(scope='module')
def peer(trained: pathlib.Path):
    """The model and tokenizer of transformers for the same export."""
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    transformers = pytest.importorskip('transformers', reason="compares with transformers' BERT")
    torch.set_num_threads(1)
    directory = trained / 'export' / 'hf'
    model = transformers.BertForPreTraining.from_pretrained(directory, attn_implementation='eager').eval()
    return model, transformers.AutoTokenizer.from_pretrained(directory)


def expected(peer, text: str, second: str | None = None):
    """Returns the ids, the log-probabilities [position, piece], and the logits of the pair head, from transformers."""
    import torch

    model, tokenizer = peer
    inputs = tokenizer(text, second, return_tensors='pt')
    with torch.no_grad():
        outputs = model(**inputs)
    scores = torch.log_softmax(outputs.prediction_logits[0].double(), -1).numpy()
    return inputs['input_ids'][0].numpy(), scores, outputs.seq_relationship_logits[0].double().numpy()


def test_fillings_are_those_of_transformers(bert, peer):
    tokenizer = peer[1]
    for text, masks in zip(TEXTS, bert.fill(TEXTS, top_k=7), strict=True):
        masks = [masks] if isinstance(masks[0], dict) else masks
        ids, scores, _ = expected(peer, text)
        positions = np.flatnonzero(ids == tokenizer.mask_token_id)
        assert len(masks) == len(positions) == text.count('[MASK]')
        for mask, position in zip(masks, positions, strict=True):
            best = np.argsort(-scores[position], kind='stable')[:7]
            assert [filling['token'] for filling in mask] == tokenizer.convert_ids_to_tokens(best)
            np.testing.assert_allclose(
                [filling['probability'] for filling in mask], np.exp(scores[position][best]), atol=1e-5
            )


def test_scores_are_those_of_transformers(bert, peer):
    """Each piece is masked in turn."""
    texts = ['the river runs', 'an old stone falls over the field and the wind.', '']
    tokenizer = peer[1]
    for text, score in zip(texts, bert.score(texts), strict=True):
        ids, total = expected(peer, text)[0], 0.0
        for position in range(1, len(ids) - 1):
            masked = tokenizer.decode([*ids[1:position], tokenizer.mask_token_id, *ids[position + 1 : -1]])
            masked_ids, scores, _ = expected(peer, masked)
            assert len(masked_ids) == len(ids)
            total += scores[position][ids[position]]
        assert score['log_likelihood'] == pytest.approx(total, abs=1e-5 * len(ids))
        assert score['tokens'] == len(ids) - 2 and score['words'] == len(text.split())
        perplexity = None if not text else pytest.approx(math.exp(-total / score['tokens']), rel=1e-5)
        assert score['perplexity'] == perplexity


def test_words_are_counted_in_the_truncated_text(trained):
    """A perplexity that overflows a float is None."""
    bert = bertjax.load(trained, max_length=6)
    assert bert.score('a bird, sings over the house') | {'tokens': 4, 'words': 3} == bert.score('a bird, sings')
    total = corpus_score([{'log_likelihood': -887.0, 'tokens': 100, 'words': 1}])
    assert total['perplexity'] == pytest.approx(math.exp(8.87)) and total['word_perplexity'] is None


def test_pairs_are_those_of_transformers(bert, peer):
    first, second = ['the river runs', 'stone'], ['a bird sings over the old house', 'under the wind']
    probabilities = bert.next_sentence(first, second)
    for a, b, probability in zip(first, second, probabilities, strict=True):
        logits = expected(peer, a, b)[2]
        assert probability == pytest.approx(1 / (1 + math.exp(logits[1] - logits[0])), abs=1e-5)
        assert bert.next_sentence(a, b) == pytest.approx(probability, abs=1e-5)
    with pytest.raises(UserError, match='expected one for each text'):
        bert.next_sentence(first, ['one'])


@pytest.mark.slow
def test_joint_filling_fills_the_most_probable_mask_first(bert, peer):
    """The same steps are done with transformers."""
    tokenizer, text = peer[1], TEXTS[1]
    special, order, total = tokenizer.all_special_ids, [], 0.0
    ids, scores, _ = expected(peer, text)
    masks = np.flatnonzero(ids == tokenizer.mask_token_id).tolist()
    for _ in masks:
        left = [position for position in masks if ids[position] == tokenizer.mask_token_id]
        scores[:, special] = -np.inf
        chosen = max(left, key=lambda position: scores[position].max())
        order.append(masks.index(chosen))
        total += scores[chosen].max()
        ids[chosen] = scores[chosen].argmax()
        _, scores, _ = expected(peer, tokenizer.decode(ids[1:-1]))
    found = bert.fill(text, jointly=True)
    assert found['order'] == order and found['log_probability'] == pytest.approx(total, abs=1e-4)
    assert found['tokens'] == tokenizer.convert_ids_to_tokens(ids[masks])
    assert '[MASK]' not in found['text'] and found['text'].startswith('a ') and found['text'].endswith('and runs')


@pytest.mark.slow
def test_masks_have_several_spellings_and_other_text_is_unchanged(bert, trained):
    for mask, others in zip(bert.fill('a <mask>, [MASK]', top_k=1), ('[MASK]', 'a <mask>'), strict=True):
        assert others in mask[0]['text']
    one, other = bert.fill('The  River <mask>, House.', top_k=1), bert.fill('The  River [MASK], House.', top_k=1)
    assert one == other
    token, text = one[0]['token'], one[0]['text']
    filled = f'River{token[2:]}' if token.startswith('##') else f'River {token}'
    assert text == f'The  {filled}, House.'
    with pytest.raises(UserError, match=r'texts\[1\].*without a mask'):
        bert.fill(['a [MASK]', 'none'])
    with pytest.raises(UserError, match='among the first 15'):
        bertjax.load(trained, max_length=16).fill('the river ' * 30 + '[MASK]')


def test_a_continuation_depends_only_on_the_seed_and_the_text(bert):
    text = bert.extend('the river', tokens=2, seed=3)
    assert text.startswith('the river') and len(text) > len('the river')
    assert bert.extend(['stone', 'the river'], tokens=2, seed=3)[1] == text
    assert len({bert.extend('the river', tokens=2, seed=seed) for seed in range(3)}) > 1
    greedy = [bert.extend('the river', tokens=2, temperature=0, seed=seed) for seed in (0, 1)]
    assert greedy[0] == greedy[1]
    with pytest.raises(UserError, match='at most 510'):
        bert.extend('a', tokens=511)


def test_a_model_without_the_head_is_refused(tuned, program: Program, tmp_path):
    bert = bertjax.load(tuned)
    for call in (lambda: bert.fill('a [MASK]'), lambda: bert.score('a'), lambda: bert.extend('a')):
        with pytest.raises(UserError, match='no head for masked words'):
            call()
    with pytest.raises(UserError, match='no head for sentence pairs'):
        bert.next_sentence('a', 'b')
    line = program.error(f'--workdir={tmp_path}', f'--config.init={tuned}', '--config.fill.text=a [MASK]', **RECIPE)
    assert 'no head for masked words' in line and "config.fill.ask='masks'" in line


def run_fill(program: Program, trained: pathlib.Path, workdir: pathlib.Path, *more: str, argument: str = ''):
    recipe = {'recipe': f'configs/fill.py{argument}', 'small': False}
    return program.run(f'--workdir={workdir}', f'--config.init={trained}', *more, **recipe).stdout


def test_one_text_is_answered_by_a_table(program: Program, trained, tmp_path, bert):
    out = run_fill(program, trained, tmp_path, f'--config.fill.text={TEXTS[0]}', '--config.fill.top_k=2')
    for filling in bert.fill(TEXTS[0], top_k=2):
        assert f'{filling["probability"]:.4f}' in out and filling['text'] in out
    pair = ('--config.fill.text=the river', '--config.fill.second=a stone')
    assert 'probability' in run_fill(program, trained, tmp_path, *pair, argument=':pairs')
    assert not list(tmp_path.rglob('*.jsonl'))


def test_files_are_answered_line_by_line(program: Program, trained, tmp_path, bert):
    lines, records = tmp_path / 'lines.txt', tmp_path / 'records.jsonl'
    lines.write_text('\n'.join([TEXTS[0], '', *TEXTS[1:]]))
    records.write_text(
        ''.join(json.dumps({'n': n, 'body': text.replace('[MASK]', 'a')}) + '\n' for n, text in enumerate(TEXTS))
    )
    run_fill(program, trained, tmp_path, f'--config.input={lines}')
    found = rows(tmp_path / 'fill' / 'lines.masks.jsonl')
    assert [row.get('skipped') for row in found] == [None, 'a blank line', None, None]
    assert [len(row['masks']) for row in found if 'masks' in row] == [1, 3, 1] and len(found[0]['masks'][0]) == 5
    run_fill(program, trained, tmp_path, f'--config.input={lines}', '--config.fill.jointly')
    joint = rows(tmp_path / 'fill' / 'lines.jointly.jsonl')
    assert joint[2]['filled'] == bert.fill(TEXTS[1], jointly=True)['text']
    out = run_fill(
        program, trained, tmp_path, f'--config.input={records}', '--config.fill.field=body', '--config.max_length=8',
        argument=':score',
    )  # fmt: skip
    scores = rows(tmp_path / 'fill' / 'records.score.jsonl')
    full = [row['tokens'] for row in scores].count(6)
    assert full and f'{full} texts have 8 tokens, the maximum: longer texts were truncated' in out
    assert [row['n'] for row in scores] == [0, 1, 2]
    total = json.loads((tmp_path / 'fill' / 'records.score.json').read_text())
    assert total['texts'] == 3 and total['tokens'] == sum(row['tokens'] for row in scores)
    assert (total['longest'], total['full']) == (8, full)
    assert total['log_likelihood'] == pytest.approx(sum(row['log_likelihood'] for row in scores))
    assert total['perplexity'] == pytest.approx(math.exp(-total['log_likelihood'] / total['tokens']))
    assert 'word perplexity' in out
    run_fill(
        program,
        trained,
        tmp_path,
        f'--config.input={records}',
        '--config.fill.field=body',
        '--config.fill.tokens=3',
        argument=':continue',
    )
    assert all(
        row['continued'].startswith(row['text'].strip()[:5])
        for row in rows(tmp_path / 'fill' / 'records.continue.jsonl')
    )
    long = ('--config.fill.text=a', '--config.fill.tokens=600')
    line = program.error(
        f'--workdir={tmp_path}', f'--config.init={trained}', *long, recipe='configs/fill.py:continue', small=False
    )
    assert 'config.fill.tokens: found 600, expected at most 510' in line


@pytest.mark.slow
def test_answers_to_another_input_with_the_same_name_are_not_replaced(program: Program, trained, tmp_path, monkeypatch):
    for folder in ('a', 'b'):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 't.txt').write_text(f'{folder} [MASK]\n')
    out = run_fill(program, trained, tmp_path, f'--config.input={tmp_path / "a" / "t.txt"}')
    assert out.count(f'using {trained}; ') == 1 and 'tensors of its BertForPreTraining loaded' in out
    before = (tmp_path / 'fill' / 't.masks.jsonl').read_bytes()
    other = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={tmp_path / "b" / "t.txt"}')
    assert f'results of {tmp_path / "a" / "t.txt"}' in program.error(*other, **RECIPE)
    assert (tmp_path / 'fill' / 't.masks.jsonl').read_bytes() == before
    monkeypatch.setattr(progress, 'show_progress', None)  # only the bar of the file may be shown
    run_fill(program, trained, tmp_path, f'--config.input={tmp_path / "a" / "t.txt"}', '--config.fill.top_k=2')
    assert (tmp_path / 'fill' / 't.masks.jsonl').read_bytes() != before


IGNORED = [
    ('masks', 'tokens=3'), ('score', 'top_k=9'), ('score', 'jointly'), ('pairs', 'temperature=0.5'),
    ('masks', 'pair_field=b'), ('masks', 'seed=3'), ('score', 'sample=3'), ('continue', 'top_k=9'),
    ('masks', 'jointly --config.fill.top_k=9'), ('masks', 'text=[MASK] --config.fill.field=b'),
    ('continue', 'temperature=0.0 --config.fill.seed=3'), ('continue', 'temperature=0.0 --config.fill.sample=3'),
    ('pairs', 'text=a --config.fill.second=b --config.fill.pair_field=c'), ('masks', 'second=a'),
]  # fmt: skip


@pytest.mark.parametrize(('kind', 'options'), IGNORED)
def test_an_option_that_would_change_nothing_is_refused(program: Program, trained, tmp_path, kind, options):
    recipe = {'recipe': f'configs/fill.py:{kind}', 'small': False}
    changes = ('--config.fill.' + options).split()
    line = program.error(f'--workdir={tmp_path}', f'--config.init={trained}', *changes, **recipe)
    assert (
        changes[-1].removeprefix('--').partition('=')[0] in line
        and 'expected no value, because it has no effect' in line
    )


@pytest.mark.slow
def test_a_call_has_one_progress_bar(bert, monkeypatch):
    """No bar is nested in another, and each ends at the number of texts."""
    bars = []

    @contextlib.contextmanager
    def record_progress(title, total, **_):
        bars.append([title, total, 0])

        def advance(count):
            bars[-1][2] += count

        yield advance

    monkeypatch.setattr(progress, 'show_progress', record_progress)
    monkeypatch.setattr('bertjax.inference.score._CHUNK', 8)
    for call in (
        lambda: bert.fill(TEXTS),
        lambda: bert.fill(TEXTS, jointly=True),
        lambda: bert.score(['the river', 'stone', '']),
        lambda: bert.next_sentence(TEXTS, TEXTS),
        lambda: bert.extend(TEXTS, tokens=2),
    ):
        call()
    assert [(title, done) for title, _, done in bars] == [
        ('filling', 3), ('filling', 3), ('scoring', 3), ('pairs', 3), ('continuing', 3),
    ]  # fmt: skip
    assert all(done == total for _, total, done in bars)


def test_mistakes_are_reported_before_anything_is_computed(program: Program, trained, tmp_path):
    bad = tmp_path / 'bad.txt'
    bad.write_text('a [MASK]\nnone here\n')
    init = (f'--workdir={tmp_path / "w"}', f'--config.init={trained}')
    assert f'{bad}:2' in program.error(*init, f'--config.input={bad}', **RECIPE)
    assert not (tmp_path / 'w').exists()
    assert 'config.input: found nothing' in program.error(*init, **RECIPE)
    assert 'config.fill.second' in program.error(
        *init, '--config.fill.text=a', **(RECIPE | {'recipe': 'configs/fill.py:pairs'})
    )
    assert 'config.fill.ask' in program.error(
        *init, '--config.fill.text=a', **(RECIPE | {'recipe': 'configs/fill.py:guess'})
    )
    assert 'one of the two' in program.error(*init, '--config.fill.text=a', f'--config.input={bad}', **RECIPE)
    assert 'config.init' in program.error(f'--workdir={tmp_path / "x"}', '--config.fill.text=a [MASK]', **RECIPE)
