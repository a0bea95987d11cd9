"""Composes the model card, the README.md of an export."""

from collections.abc import Mapping

from bertjax.convert.content import ExportContent, render


def _fields(
    title: str, library: str, pipeline: str, about: Mapping[str, str], figures: Mapping[str, Mapping[str, float | None]]
) -> str:
    """Returns the YAML header of the card, which the hub reads."""
    from huggingface_hub import EvalResult, ModelCardData  # The import is slow, and is needed only at the end of a run.

    fields = {name: about.get(name) or None for name in ('license', 'base_model')}
    lists = {name: about[name].split(',') if about.get(name) else None for name in ('language', 'datasets')}
    eval_results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=about['datasets'],
            dataset_name=about['datasets'],
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
        )
        for split, values in (figures if len(lists['datasets'] or ()) == 1 else {}).items()
        for metric, value in values.items()
        if value is not None
    ]
    return ModelCardData(
        library_name=library,
        pipeline_tag=pipeline or 'fill-mask',
        tags=['bert', 'bertjax'],
        **fields,
        **lists,
        **({'model_name': title, 'eval_results': eval_results} if eval_results else {}),
    ).to_yaml()


def model_card(content: ExportContent, architecture: str, parameters: int, pipeline: str) -> str:
    """Returns the text of the card.

    Args:
      content: The exported model. Its `card` has facts about the training, in display order. A value that is a mapping
        becomes a section with a table. Three optional keys are not facts: 'title' is the heading, 'name' is the model's
        name on the hub, and 'made' replaces the word 'pre-trained' or 'fine-tuned'. Equal runs must give equal cards,
        so no value may be a time or a path. The hub shows the `figures` if `about` names exactly one data set.
      architecture: The class of transformers that loads the model.
      parameters: The number of parameters.
      pipeline: The hub's pipeline tag; '' for a pre-trained model with an MLM head.
    """
    card, about = dict(content.card), content.about
    title, name, made = card.pop('title', 'BERT'), card.pop('name', ''), card.pop('made', '')
    facts = {key: value for key, value in card.items() if not isinstance(value, Mapping)}
    sections = {key: value for key, value in card.items() if isinstance(value, Mapping)}
    sentence_class = content.head.sentence_class if content.head else ''
    library = 'sentence-transformers' if sentence_class else 'transformers'
    return render(
        'card.md.j2',
        fields=_fields(title, library, pipeline, about, content.figures),
        title=title,
        name=name or 'PATH',
        made=made or ('fine-tuned' if pipeline else 'pre-trained'),
        tag=pipeline or 'fill-mask',
        is_pretrained=not pipeline,
        architecture=architecture,
        sentence_class=sentence_class,
        parameters=parameters,
        config=content.config,
        model_max_length=content.model_max_length,
        truncates=bool(content.max_length),
        tokenizer=content.tokenizer,
        datasets=[name for name in about.get('datasets', '').split(',') if name],
        base_model=about.get('base_model'),
        language=about.get('language'),
        tables={**({'Training': facts} if facts else {}), **sections},
    )
