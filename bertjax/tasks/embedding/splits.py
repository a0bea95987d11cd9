"""The splits of an embedding task: the files of a folder, a single file, a BEIR folder, or SQuAD's JSON."""

from collections.abc import Iterator, Mapping, Sequence

from bertjax.errors import UserError
from bertjax.files.paths import existing_files
from bertjax.remote.paths import user_path
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.reading.records import Files, read_records
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.sentence.files import TableFiles
from bertjax.tasks.squad.files import is_squad_json, read_questions


class EmbeddingSplits:
    """The splits of the data.

    Args:
      data: A folder, a training file, or a BEIR folder; '' if no records are read. The training file and the
        files of a folder may be SQuAD's JSON. A folder may use SQuAD's own names such as dev-v1.1.json.
      names: {split: the name of its file}; '' for the usual names.
      columns, keys: See files.parse_examples.
    """

    def __init__(self, data: str, names: Mapping[str, str], columns: Mapping[str, str], keys: str = 'config.task'):
        self._data, self._columns, self._names, self._keys = data, columns, names, keys
        self._files = TableFiles(data, '', names, 'auto')
        self._folder = user_path(data, 'config.data') if data else None
        self._beir = self._folder if self._folder and (self._folder / 'corpus.jsonl').is_file() else None

    @property
    def is_beir(self) -> bool:
        """Whether the data are a BEIR folder."""
        return self._beir is not None

    def form_of(self, split: str) -> str:
        """Returns the form of a split, a key of files.FORMS, or '' if the split does not exist."""
        if self._beir is not None:
            return 'pairs' if (self._beir / 'qrels' / f'{split}.tsv').is_file() else ''
        paths = self._find(split)
        if not paths:
            return ''
        if is_squad_json(paths[0]):
            return 'pairs'
        return files.find_form(next(read_records(paths)), self._columns, self._keys)

    def _find(self, split: str) -> Files:
        """Returns the files of a split, or () if there are none."""
        names = [f'{split}-v{version}.json{suffix}' for version in ('1.1', '2.0') for suffix in ('', '.gz')]
        if self._folder is not None and self._folder.is_dir() and not self._names[split]:
            official = next(existing_files(self._folder, names), None)
            if official is not None:
                return (official,)
        return self._files.find(split) or ()

    def names(self) -> list[str]:
        """Returns the training split, and the splits that a model can be evaluated on."""
        forms = {split: self.form_of(split) for split in STEMS}
        if forms['dev'] == 'texts':
            raise self._no_pairs('dev')
        if forms['test'] == 'scored' and next(self._examples('test')).score is None:
            forms['test'] = ''
        return [split for split, form in forms.items() if form and (split == 'train' or form != 'texts')]

    def describe(self) -> str:
        """Returns a readable list of the splits and their files, or '' for a BEIR folder or SQuAD's own names."""
        if self._beir is not None or any(self._find(split) and not self._files.find(split) for split in STEMS):
            return ''
        return self._files.describe('', self.names())

    def queries(self, split: str) -> list[Query]:
        """Reads the pairs of a split as search queries.

        Their corpus is all documents of a BEIR folder, all paragraphs of SQuAD, or all positives and negatives.

        Raises:
          UserError: The split does not exist, has no pairs, or is malformed.
        """
        if self._beir is not None:
            queries = files.read_beir(self._beir, split)
            if not any(query.relevant for query in queries):
                where = str(self._beir / 'qrels' / f'{split}.tsv')
                raise UserError(where, 'no relevant document', 'rows with a score above 0', 'check the file')
            return queries
        paths = self._paths(split)
        if is_squad_json(paths[0]):
            queries = files.questions_as_queries(read_questions(paths, answerable=False, labels='optional'))
            if not queries:
                expected = 'questions to search with'
                raise UserError(str(paths[0]), 'no question with an answer', expected, 'check the file')
            return queries
        columns = {role: self._columns[role] for role in ('anchor', 'positive', 'negative')}  # scores are not read
        return files.pairs_as_queries([*files.parse_examples(read_records(paths), columns, self._keys)])

    def records(self, split: str) -> Sequence[TextExample | Query]:
        """Reads the records of a split. Pairs become search queries, except in the training split.

        Raises:
          UserError: The split does not exist, or a row is malformed.
        """
        if split not in STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')
        if self._beir is not None or is_squad_json(self._paths(split)[0]):
            queries = self.queries(split)
            if split != 'train':
                return queries
            texts = [(query.text, query.corpus.texts[i]) for query in queries for i in query.relevant]
            return [TextExample('pairs', pair) for pair in texts]
        examples = list(self._examples(split))
        if examples[0].form in files.GROUPS and split != 'train':
            return files.pairs_as_queries(examples)
        if examples[0].form == 'texts' and split != 'train':
            raise self._no_pairs(split)
        unscored = [example.where for example in examples if example.form == 'scored' and example.score is None]
        if unscored and (split != 'test' or len(unscored) < len(examples)):
            found, fix = f'no score in the column {self._columns["label"]}', 'correct or remove the record'
            raise UserError(unscored[0], found, 'a number', fix)
        return examples

    def _no_pairs(self, split: str) -> UserError:
        found, expected = f'single texts as the {split} split', 'pairs or scored pairs, which can be evaluated'
        return UserError(self._data, found, expected, 'give a file with pairs, or move the file away')

    def _examples(self, split: str) -> Iterator[TextExample]:
        return files.parse_examples(read_records(self._paths(split)), self._columns, self._keys)

    def _paths(self, split: str) -> Files:
        paths = self._find(split)
        if not paths:
            fix = f'add the file, or name it in config.task.{split}' if self._keys == 'config.task' else 'add the file'
            raise UserError(self._data, f'no file of the {split} split', f'{split}.jsonl, {split}.tsv …', fix)
        return paths
