"""A text report on predicted tags."""

from collections.abc import Sequence

from bertjax.metrics.entities import score_entities, total_score


def tagging_report(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, plain: bool, repaired: int
) -> str:
    """Returns a table of scores with a line for each entity type, or for each tag if `plain` is True.

    The most frequent types or tags are first.

    Args:
      gold, predicted: The true and the predicted tags of each sentence.
      plain: True if each tag describes a single word, False if the tags mark entities.
      repaired: The number of entities that begin with I in the output of the model.
    """
    scores = {(name or '(no type)'): score for name, score in score_entities(gold, predicted, plain).items()}
    order = sorted(scores, key=lambda name: (-scores[name].true, -scores[name].predicted, name))
    rows = [(name, scores[name]) for name in order] + [('all', total_score(scores))]
    width = max(len(name) for name, _ in rows)
    lines = [f'{"tag" if plain else "entity":{width}}  precision  recall      f1    gold    pred   right']
    for name, score in rows:
        figures = f'{score.precision:9.4f}{score.recall:8.4f}{score.f1:8.4f}'
        lines.append(f'{name:{width}}  {figures}{score.true:8,}{score.predicted:8,}{score.right:8,}')
    if repaired:
        lines.append(
            f'{repaired:,} predicted entities began with I instead of B (after O or another type); each such I was '
            'replaced by B'
        )
    return '\n'.join(lines)
