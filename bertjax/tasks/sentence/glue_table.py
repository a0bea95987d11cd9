"""The columns, labels, metrics and files of the GLUE tasks. The diagnostic set is a split of MNLI."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class GlueSplit:
    """The location of a split.

    Attributes:
      files: the possible file names in the task's folder. The first existing file is read.
      tfds: (dataset, split) in tensorflow-datasets.
      headerless_columns: the columns of a file without a header.
      server: the file name of the predictions for the server; '' for a split that the server does not evaluate.
    """

    files: tuple[str, ...]
    tfds: tuple[str, str]
    headerless_columns: tuple[str, ...]
    server: str = ''


@dataclasses.dataclass(frozen=True)
class GlueRow:
    """A task of GLUE.

    Attributes:
      title: the name of the task and of its folder.
      texts: for each of the one or two texts, the possible names of its column in files and in tensorflow-datasets.
      label: the possible names of the label column.
      labels: the names of the labels, in the order of tensorflow-datasets; () for a regression.
      file_labels: the text of each label in the files and in the predictions for the server.
      measures: the names of the metrics; the first is the score.
      splits: the location of each split, by name.
      max_broken_rows: the number of rows of a labeled file that may have a wrong number of columns.
    """

    title: str
    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    labels: tuple[str, ...]
    file_labels: tuple[str, ...]
    measures: tuple[str, ...]
    splits: Mapping[str, GlueSplit]
    max_broken_rows: int = 0


def _splits(title: str, columns: tuple[str, ...], test_columns: tuple[str, ...]) -> dict[str, GlueSplit]:
    dataset = f'glue/{title.lower().replace("-", "")}'
    return {
        'train': GlueSplit(('train.tsv',), (dataset, 'train'), columns),
        'dev': GlueSplit(('dev.tsv',), (dataset, 'validation'), columns),
        'test': GlueSplit(('test.tsv',), (dataset, 'test'), test_columns, f'{title}.tsv'),
    }


_ONE = (('sentence',),)
_TWO = (('sentence1',), ('sentence2',))
_BINARY = ('0', '1')
_ENTAILMENT = ('entailment', 'not_entailment')
_INFERENCE = ('entailment', 'neutral', 'contradiction')
_QQP = ('id', 'qid1', 'qid2', 'question1', 'question2')
_MRPC = ('id1', 'id2', 'sentence1', 'sentence2')
_BARE_PAIR = ('index', 'sentence1', 'sentence2')
_STSB = ('index', 'genre', 'filename', 'year', 'old_index', 'source1', 'source2', 'sentence1', 'sentence2')
_MNLI = ('index', 'promptID', 'pairID', 'genre', 'sentence1_binary_parse', 'sentence2_binary_parse')
_MNLI += ('sentence1_parse', 'sentence2_parse', 'sentence1', 'sentence2')
_MNLI_TEXTS = (('sentence1', 'premise', 'Premise'), ('sentence2', 'hypothesis', 'Hypothesis'))
_MNLI_LABELED = (*_MNLI, 'label1', 'gold_label')
# The download script stores the diagnostic set in a sibling folder of MNLI. A copy in the folder of MNLI has priority.
# Only diagnostic-full.tsv has labels.
_AX_FILES = ('diagnostic.tsv', 'AX.tsv', 'diagnostic-full.tsv')
_AX_FILES += tuple(f'../{folder}/{name}' for folder in ('diagnostic', 'AX') for name in _AX_FILES)

TASKS = {
    'cola': GlueRow(
        'CoLA', _ONE, ('label',), ('unacceptable', 'acceptable'), _BINARY, ('matthews', 'accuracy'),
        _splits('CoLA', ('source', 'label', 'mark', 'sentence'), ('index', 'sentence')),
    ),
    'sst2': GlueRow(
        'SST-2', _ONE, ('label',), ('negative', 'positive'), _BINARY, ('accuracy',),
        _splits('SST-2', ('sentence', 'label'), ('index', 'sentence')),
    ),
    'mrpc': GlueRow(
        'MRPC', (('#1 String', 'sentence1'), ('#2 String', 'sentence2')), ('Quality', 'label'),
        ('not_equivalent', 'equivalent'), _BINARY, ('f1', 'accuracy'),
        _splits('MRPC', ('label', *_MRPC), ('index', *_MRPC)),
    ),
    'stsb': GlueRow(
        'STS-B', _TWO, ('score', 'label'), (), (), ('spearman', 'pearson'), _splits('STS-B', (*_STSB, 'score'), _STSB),
    ),
    # In the first edition of QQP.zip, a few rows are broken by line ends inside questions. These rows are dropped, as
    # in transformers and tensorflow-datasets.
    'qqp': GlueRow(
        'QQP', (('question1',), ('question2',)), ('is_duplicate', 'label'), ('not_duplicate', 'duplicate'), _BINARY,
        ('f1', 'accuracy'), _splits('QQP', (*_QQP, 'is_duplicate'), ('id', 'question1', 'question2')), 16,
    ),
    'mnli': GlueRow(
        'MNLI', _MNLI_TEXTS, ('gold_label', 'label', 'Label'), _INFERENCE, _INFERENCE, ('accuracy', 'matthews'),
        {
            'train': GlueSplit(('train.tsv',), ('glue/mnli', 'train'), _MNLI_LABELED),
            'dev': GlueSplit(('dev_matched.tsv',), ('glue/mnli', 'validation_matched'), _MNLI_LABELED),
            'dev_mismatched': GlueSplit(('dev_mismatched.tsv',), ('glue/mnli', 'validation_mismatched'), _MNLI_LABELED),
            'test': GlueSplit(('test_matched.tsv',), ('glue/mnli', 'test_matched'), _MNLI, 'MNLI-m.tsv'),
            'test_mismatched': GlueSplit(
                ('test_mismatched.tsv',), ('glue/mnli', 'test_mismatched'), _MNLI, 'MNLI-mm.tsv',
            ),
            'ax': GlueSplit(_AX_FILES, ('glue/ax', 'test'), _BARE_PAIR, 'AX.tsv'),
        },
    ),
    'qnli': GlueRow(
        'QNLI', (('question',), ('sentence',)), ('label',), _ENTAILMENT, _ENTAILMENT, ('accuracy',),
        _splits('QNLI', ('index', 'question', 'sentence', 'label'), ('index', 'question', 'sentence')),
    ),
    'rte': GlueRow(
        'RTE', _TWO, ('label',), _ENTAILMENT, _ENTAILMENT, ('accuracy',),
        _splits('RTE', (*_BARE_PAIR, 'label'), _BARE_PAIR),
    ),
    'wnli': GlueRow(
        'WNLI', _TWO, ('label',), ('not_entailment', 'entailment'), _BINARY, ('accuracy',),
        _splits('WNLI', (*_BARE_PAIR, 'label'), _BARE_PAIR),
    ),
}  # fmt: skip
