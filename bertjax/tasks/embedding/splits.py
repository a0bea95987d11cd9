"""The splits of an embedding task: the files of a folder, a single file, a BEIR folder, or SQuAD's JSON."""

import dataclasses
from collections.abc import Mapping, Sequence

from bertjax.errors import UserError
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.reading.records import Files, read_records
from bertjax.tasks.reading.splits import STEMS, SplitFiles, TableFiles, check_split
from bertjax.tasks.squad.files import is_squad_json, official_file, read_questions


class EmbeddingSplits(TableFiles):
    """The splits of the data of an embedding task.

    Args:
      data: A folder, a training file, or a BEIR folder; '' if no records are read. The training file and the
        files of a folder may be SQuAD's JSON. A folder may use SQuAD's own names such as dev-v1.1.json.
      names: {split: the name of its file}; '' for the usual names in a folder.
      columns, keys: See files.parse_examples.
    """

    _data_advice = 'give --config.data=FOLDER'

    def __init__(self, data: str, names: Mapping[str, str], columns: Mapping[str, str], keys: str = 'config.task'):
        super().__init__(data, '', names)
        self._columns, self._keys = columns, keys
        self._advice = TableFiles._advice if keys == 'config.task' else SplitFiles._advice
        self.is_beir = (  # corpus.jsonl alone can be any file beside the files of the splits
            bool(data)
            and (self._path / 'corpus.jsonl').is_file()
            and any((self._path / name).exists() for name in ('queries.jsonl', 'qrels'))
        )
        for split, name in names.items() if self.is_beir else ():
            if name:  # not an error, because the option may come from the training run, which had other data
                print(f'{keys}.{split}={name} is not used, because the splits of a BEIR folder are in qrels')

    def form_of(self, split: str) -> str:
        """Returns the form of a split, a key of files.FORMS, or '' if the split does not exist."""
        if self.is_beir:
            return 'pairs' if (self._path / 'qrels' / f'{split}.tsv').is_file() else ''
        paths = self.find(split)
        if not paths:
            return ''
        if is_squad_json(paths[0]):
            return 'pairs'
        return files.find_form(next(read_records(paths)), self._columns, self._keys)

    def find(self, split: str) -> Files:
        """Returns the files of a split, or () if there are none."""
        official: Files = ()
        if self._data and self._path.is_dir() and not self._names[split]:
            official = official_file(self._path, split, '1.1', '2.0')
        return official or super().find(split)

    def splits(self) -> list[str]:
        """Returns the names of the splits that can be evaluated, with 'train' only if it has scored pairs."""
        forms = {split: self.form_of(split) for split in STEMS}
        if forms['dev'] == 'texts':
            raise self._no_pairs('dev')
        if forms['test'] == 'scored' and self.records('test')[0].score is None:
            forms['test'] = ''
        return [name for name, form in forms.items() if form == 'scored' or (form in files.GROUPS and name != 'train')]

    def describe(self) -> str:
        """Returns a readable list of the splits and their files, or '' for a BEIR folder."""
        return '' if self.is_beir else super().describe()

    def queries(self, split: str) -> list[Query]:
        """Reads a split as queries over all documents of BEIR, paragraphs of SQuAD, or positives and negatives."""
        paths = [self._path / 'qrels' / f'{split}.tsv'] if self.is_beir else self.require(split)
        if self.is_beir:
            queries = files.read_beir(self._path, split)
        elif is_squad_json(paths[0]):
            queries = files.questions_as_queries(read_questions(paths, answerable=False, needed=False))
        else:  # the scores of a teacher are ignored
            columns = {role: self._columns[role] for role in ('anchor', 'positive', 'negative')}
            queries = files.pairs_as_queries([*files.parse_examples(read_records(paths), columns, self._keys)])
        if not any(query.relevant for query in queries):
            expected = 'a score above 0, or a question with an answer'
            raise UserError(str(paths[0]), 'no relevant document', expected, 'check the file')
        return queries

    def records(self, split: str) -> Sequence[TextExample | Query]:
        """Reads the records of a split. Pairs become search queries, except in the training split."""
        check_split(split)
        is_search = self.is_beir or is_squad_json(self.require(split)[0])
        if split != 'train' and (is_search or self.form_of(split) in files.GROUPS):
            return self.queries(split)
        if is_search:
            texts = [(query.text, query.corpus.texts[i]) for query in self.queries(split) for i in query.relevant]
            return [TextExample('pairs', pair) for pair in texts]
        required: list[str] = []
        # If dev or test has scored pairs, a renamed column may exist only there.
        if split == 'train' and 'scored' not in map(self.form_of, ('dev', 'test')):
            required = [role for role, name in files.OPTIONAL_COLUMNS.items() if self._columns[role] != name]
        rows = read_records(self.require(split))
        examples = list(files.parse_examples(rows, self._columns, self._keys, required))
        if examples[0].form == 'texts' and split != 'train':
            raise self._no_pairs(split)
        # Files on the Hugging Face Hub with unpublished scores have the score -1.
        if split == 'test' and all(example.score == -1 for example in examples):
            examples = [dataclasses.replace(example, score=None) for example in examples]
        unscored = [example.where for example in examples if example.form == 'scored' and example.score is None]
        if unscored and (split != 'test' or len(unscored) < len(examples)):
            found, fix = f'no score in the column {self._columns["label"]}', 'correct or remove the record'
            raise UserError(unscored[0], found, 'a number', fix)
        return examples

    def _no_pairs(self, split: str) -> UserError:
        found, expected = f'single texts as the {split} split', 'pairs or scored pairs, which can be evaluated'
        return UserError(self._data, found, expected, 'give a file with pairs, or move the file away')
