"""The splits of a task of embeddings: the files of a folder, a single file, or a BEIR folder."""

from collections.abc import Iterator, Mapping, Sequence

from bertjax.errors import UserError
from bertjax.remote.paths import user_path
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.reading.records import read_records
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.sentence.files import TableFiles


class EmbeddingSplits:
    """The splits of the data.

    Args:
      data: A folder, a training file, or a BEIR folder; '' if no records are read.
      names: {split: the name of its file}; '' for the usual names.
      columns: {role of files.ROLES: name of the column}.
    """

    def __init__(self, data: str, names: Mapping[str, str], columns: Mapping[str, str]):
        self._data, self._columns = data, columns
        self._files = TableFiles(data, '', names, 'auto')
        folder = user_path(data, 'config.data') if data else None
        self._beir = folder if folder is not None and files.is_beir(folder) else None

    @property
    def is_beir(self) -> bool:
        """Whether the data are a BEIR folder."""
        return self._beir is not None

    def form_of(self, split: str) -> str:
        """Returns the form of a split, a key of files.FORMS; '' if the split does not exist."""
        if self._beir is not None:
            return 'pairs' if (self._beir / 'qrels' / f'{split}.tsv').is_file() else ''
        paths = self._files.find(split)
        return files.find_form(next(read_records(paths)), self._columns) if paths else ''

    def names(self) -> list[str]:
        """Returns the training split, and the splits that a model can be evaluated on."""
        forms = {split: self.form_of(split) for split in STEMS}
        if forms['dev'] == 'texts':
            raise self._no_pairs('dev')
        if forms['test'] == 'scored' and next(self._examples('test')).score is None:
            forms['test'] = ''
        return [split for split, form in forms.items() if form and (split == 'train' or form != 'texts')]

    def describe(self) -> str:
        """Returns a readable list of the splits and their files."""
        return '' if self._beir is not None else self._files.describe('', self.names())

    def records(self, split: str) -> Sequence[TextExample | Query]:
        """Reads the records of a split. Pairs are queries of a search, except in the training split.

        Raises:
          UserError: The split does not exist, or a row is malformed.
        """
        if split not in STEMS:
            raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')
        if self._beir is not None:
            queries = files.read_beir(self._beir, split)
            if not any(query.relevant for query in queries):
                where = str(self._beir / 'qrels' / f'{split}.tsv')
                raise UserError(where, 'no relevant document', 'rows with a score above 0', 'check the file')
            return files.queries_as_pairs(queries) if split == 'train' else queries
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
        return UserError(self._data, found, expected, 'give such a file, or move it away')

    def _examples(self, split: str) -> Iterator[TextExample]:
        paths = self._files.find(split)
        if not paths:
            fix = f'add the file, or name it in config.task.{split}'
            raise UserError(self._data, f'no file of the {split} split', f'{split}.jsonl, {split}.tsv …', fix)
        return files.parse_examples(read_records(paths), self._columns)
