"""Tests model cards with `huggingface_hub`."""

import pathlib
import re

import pytest
from huggingface_hub import ModelCard

from bertjax.config.run import Card
from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.card import model_card
from bertjax.model.bert import BertForPreTraining
from bertjax.tasks.embedding.task import EmbeddingTask
from bertjax.tasks.late_interaction.task import LateInteractionTask
from bertjax.tasks.reranking.task import RerankTask

ABOUT = {'license': 'apache-2.0', 'language': 'en,de', 'datasets': 'nyu-mll/glue', 'base_model': 'a/b'}
FIGURES = {'dev': {'accuracy': 0.75, 'f1': None}}
PLAIN = """---
library_name: transformers
pipeline_tag: fill-mask
tags:
- bert
- bertjax
---

# BERT
"""


@pytest.fixture
def write_card(small_config):
    """write_card(architecture, pipeline, **content) -> the text of the card of a model of 7 parameters."""

    def write(architecture: str, pipeline: str = '', **content) -> str:
        module = BertForPreTraining(small_config())
        return model_card(ExportContent(module, {}, None, **content), architecture, 7, pipeline)

    return write


def read(text: str, folder: pathlib.Path) -> ModelCard:
    (folder / 'README.md').write_text(text, encoding='utf-8')
    return ModelCard.load(folder / 'README.md')


def test_a_card_without_facts_from_the_user(write_card):
    text = write_card('BertForPreTraining', about=vars(Card()))
    assert text.startswith(PLAIN) and 'A BERT of 7 parameters' in text


@pytest.mark.parametrize('pipeline', ['', 'text-classification'])
def test_facts_from_the_user_are_in_the_metadata(write_card, tmp_path: pathlib.Path, pipeline: str):
    card = {'title': 'BERT: "for RTE"', 'seed': 0}
    text = write_card('BertModel', pipeline, card=card, about=ABOUT, figures=FIGURES if pipeline else {})
    data = read(text, tmp_path).data
    assert (data.license, data.language, data.datasets) == ('apache-2.0', ['en', 'de'], ['nyu-mll/glue'])
    assert (data.base_model, data.library_name, data.tags) == ('a/b', 'transformers', ['bert', 'bertjax'])
    assert data.pipeline_tag == (pipeline or 'fill-mask')
    if pipeline:
        (measured,) = data.eval_results
        assert (measured.dataset_type, measured.dataset_split) == ('nyu-mll/glue', 'dev')
        assert (measured.metric_type, measured.metric_value) == ('accuracy', 0.75)
        assert data.model_name == 'BERT: "for RTE"'


def test_a_card_has_the_headings_that_the_hub_expects(write_card):
    about = {**ABOUT, 'base_model': 'google-bert/bert-base-uncased'}
    text = write_card('BertForMaskedLM', card={'name': 'us/new', 'seed': 3}, about=about)
    headings = [line.removeprefix('## ') for line in text.splitlines() if line.startswith('## ')]
    assert headings == ['How to use', 'Intended use', 'Training data', 'Training', 'Limitations']
    assert "ask = pipeline('fill-mask', model='us/new')\nask(f'A sentence with a {ask.tokenizer.mask_token}" in text
    assert '[nyu-mll/glue](https://huggingface.co/datasets/nyu-mll/glue)' in text and 'more than 32 tokens' in text
    assert 'Training started from [google-bert/bert-base-uncased](' in text and 'PATH' not in text
    other = write_card('BertForMultipleChoice', 'multiple-choice')
    assert 'import pipeline' not in other and "from_pretrained('PATH')" in other


@pytest.mark.parametrize('task', [EmbeddingTask, LateInteractionTask, RerankTask])
def test_models_of_sentence_transformers_are_used_by_their_class(write_card, tmp_path: pathlib.Path, task):
    head = task.head
    text = write_card(head.architecture, head.pipeline, card={'name': 'us/new'}, head=head)
    assert read(text, tmp_path).data.library_name == 'sentence-transformers'
    (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    assert f"model = {head.sentence_class}('us/new')\n" in code and ('encode_query' in code) == (task != RerankTask)
    assert 'probabilities' not in text and 'The task that' not in text and 'from_pretrained' not in text


def test_metrics_without_a_single_data_set_are_only_in_the_text(write_card, tmp_path: pathlib.Path):
    for datasets in ('', 'a,b'):
        text = write_card('X', 'x', about={'datasets': datasets}, figures=FIGURES)
        assert read(text, tmp_path).data.eval_results is None
