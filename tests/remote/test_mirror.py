"""Tests the mirror of a folder in a bucket."""

import shutil

import pytest

from bertjax.checkpoint import checksums
from bertjax.errors import UserError
from bertjax.remote import lease, object_store
from bertjax.remote.mirror import RECORD, Mirror, MirrorRules
from bertjax.remote.object_store import RemoteFolder
from bertjax.workdir import mirror
from bertjax.workdir.exports import FORMATS

RULES = MirrorRules({r'(?:.*/)?checkpoints/\d+/': 'seal.json'}, r'(^|/)partial/|\.unfinished$')


def write_files(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def step(number: int, text: str = 'x') -> dict[str, str]:
    return {f'checkpoints/{number}/{name}': text for name in ('a', 'b', 'seal.json')}


def list_files(folder) -> list[str]:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file())
    return sorted(path for path in paths if not path.startswith('.'))


@pytest.mark.slow
def test_an_incomplete_checkpoint_is_never_pulled(bucket, tmp_path):
    """Whichever write fails, another machine pulls only complete steps. The old step is removed after the new one is
    complete."""
    local = write_files(tmp_path / 'local', {'ledger.jsonl': '4', **step(4), 'partial/x': ''})
    mirror = Mirror(local, RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    write_files(local, {'ledger.jsonl': '8', **step(8), 'checkpoints/12/a': 'no seal yet'})
    for name in ('a', 'b', 'seal.json'):
        (local / 'checkpoints/4' / name).unlink()
    (local / 'checkpoints/4').rmdir()
    for number, after in enumerate((0, 1, 1, 1)):  # Files that were written are not written again.
        with bucket.failing('deny', 'PUT', '', count=9, after=after), pytest.raises(UserError, match='denied'):
            Mirror(local, RemoteFolder('s3://bucket/run'), RULES).publish()
        other_folder = tmp_path / f'other{number}'
        other_folder.mkdir()
        Mirror(other_folder, RemoteFolder('s3://bucket/run'), RULES).pull()
        assert list_files(other_folder) == [*step(4), 'ledger.jsonl']
    Mirror(local, RemoteFolder('s3://bucket/run'), RULES).publish()
    names = ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    assert list(bucket.names('bucket/run')) == names
    # The next machine removes steps that were never finished.
    bucket.put({'run/checkpoints/12/a': b'half', 'run/checkpoints/8/other': b'of another save'})
    other_folder = tmp_path / 'other'
    other_folder.mkdir()
    other = Mirror(other_folder, RemoteFolder('s3://bucket/run'), RULES)
    other.pull()
    assert list_files(other_folder) == sorted([*names, 'checkpoints/8/other'])
    other.publish()
    assert list(bucket.names('bucket/run')) == sorted([*names, 'checkpoints/8/other'])


@pytest.mark.slow
def test_a_folder_that_was_replaced_by_fewer_files_is_complete(bucket, tmp_path):
    local = write_files(tmp_path / 'local', step(4))
    mirror = Mirror(local, RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    (local / 'checkpoints/4/b').unlink()
    write_files(local, {'checkpoints/4/a': 'other', 'checkpoints/4/seal.json': 'other'})
    mirror.pull()  # as after a kill before the next publication
    mirror.publish(everything=True)
    assert bucket.system.cat_file('bucket/run/checkpoints/4/a') == b'other'
    assert list(bucket.names('bucket/run')) == ['checkpoints/4/a', 'checkpoints/4/seal.json']


@pytest.mark.parametrize(('name', 'uploaded'), [('b', False), ('seal.json', False), ('seal.json', True)])
def test_the_bucket_always_has_a_complete_checkpoint(bucket, monkeypatch, tmp_path, name: str, uploaded: bool):
    """The run saves step 12 and removes step 8 before or after a file of step 8 is uploaded."""
    mirror = Mirror(write_files(tmp_path / 'local', step(4)), RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    write_files(mirror.folder, step(8))
    shutil.rmtree(mirror.folder / 'checkpoints/4')
    upload = RemoteFolder.upload

    def save_meanwhile(self, path, *arguments, **options):
        written = upload(self, path, *arguments, **options) if uploaded else None
        if path == f'checkpoints/8/{name}':
            write_files(mirror.folder, step(12))
            shutil.rmtree(mirror.folder / 'checkpoints/8')
        return written or upload(self, path, *arguments, **options)

    monkeypatch.setattr(RemoteFolder, 'upload', save_meanwhile)
    mirror.publish()
    assert step(8 if uploaded else 4).keys() <= bucket.names('bucket/run').keys()
    mirror.publish()
    assert list(bucket.names('bucket/run')) == list(step(12))


@pytest.mark.parametrize('mark', [True, False])
def test_a_checkpoint_that_changed_during_its_publication_gets_no_marker(bucket, monkeypatch, tmp_path, mark: bool):
    """The run is removing step 8 when the publication begins, or replaces it after a file was uploaded."""
    mirror = Mirror(write_files(tmp_path / 'local', step(8)), RemoteFolder('s3://bucket/run'), RULES)
    upload = RemoteFolder.upload

    def replace_after_upload(self, path, *arguments, **options):
        written = upload(self, path, *arguments, **options)
        if path == 'checkpoints/8/b' and not mark:
            write_files(mirror.folder, step(8, 'other'))
        return written

    monkeypatch.setattr(RemoteFolder, 'upload', replace_after_upload)
    if mark:
        (mirror.folder / 'checkpoints/8/a').unlink()
        (mirror.folder / 'checkpoints/8.unfinished').touch()
    mirror.publish()
    assert 'checkpoints/8/seal.json' not in bucket.names('bucket/run')


@pytest.mark.parametrize('lost', ['a', 'seal.json'])
def test_a_checkpoint_is_published_before_the_previous_one_is_removed(bucket, tmp_path, lost: str):
    """The list of local files is made while the run removes step 4, or before the run has completed step 8."""
    files = {f'rte/{name}': text for name, text in step(100).items()}  # the finished run of another task
    mirror = Mirror(write_files(tmp_path / 'local', {**files, **step(4)}), RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    write_files(mirror.folder, step(8))
    (mirror.folder / 'checkpoints' / ('4' if lost == 'a' else '8') / lost).unlink()
    removed = mirror.folder / 'checkpoints/4'
    if lost != 'a':
        shutil.rmtree(removed)
    mirror.publish()
    assert step(4).keys() <= bucket.names('bucket/run').keys()
    write_files(mirror.folder, step(8))
    shutil.rmtree(removed, ignore_errors=True)
    mirror.publish()
    assert list(bucket.names('bucket/run')) == [*step(8), *files]
    shutil.rmtree(mirror.folder / 'checkpoints')
    mirror.publish()
    assert list(bucket.names('bucket/run')) == list(files)


def test_the_last_checkpoint_in_the_bucket_is_not_replaced(bucket, tmp_path):
    """A purge of a scratch disk took the record, and step 12 is not published yet."""
    local = write_files(tmp_path / 'local', step(8))
    Mirror(local, RemoteFolder('s3://bucket/run'), RULES).publish()
    (local / RECORD).unlink()
    write_files(local, step(12))
    mirror = Mirror(local, RemoteFolder('s3://bucket/run'), RULES)
    mirror.pull()
    with bucket.failing('deny', 'PUT', '', count=9), pytest.raises(UserError, match='denied'):
        mirror.publish()
    assert list(bucket.names('bucket/run')) == list(step(8))


def test_missing_local_files_are_fetched_again(bucket, monkeypatch, tmp_path):
    """A purge of old files may leave the hidden record of the mirror."""
    local = write_files(tmp_path / 'local', {'ledger.jsonl': '4', 'config.json': '{}', **step(4), **step(8)})
    Mirror(local, RemoteFolder('s3://bucket/run'), RULES).publish()
    names = list_files(local)
    shutil.rmtree(local / 'checkpoints/8')
    removed = ['checkpoints/4/b', 'checkpoints/4/seal.json', 'ledger.jsonl']
    for name in removed:
        (local / name).unlink()
    mirror = Mirror(local, RemoteFolder('s3://bucket/run'), RULES)
    record = iter([mirror._save_record, lambda: None])  # A kill prevents the second call, after the files are fetched.
    monkeypatch.setattr(mirror, '_save_record', lambda: next(record)())
    with bucket.failing('deny', 'GET', 'seal.json', count=9), pytest.raises(UserError, match='denied'):
        mirror.pull()
    assert (local / 'checkpoints/4/b').exists() and not (local / 'checkpoints/4/seal.json').exists()
    mirror = Mirror(local, RemoteFolder('s3://bucket/run'), RULES)
    bucket.requests.clear()
    mirror.pull()
    read = {path.removeprefix('/bucket/run/') for method, path in bucket.requests if method == 'GET' and 'run/' in path}
    assert read == {*removed, *step(8)}
    mirror.publish(everything=True)
    assert list_files(local) == list(bucket.names('bucket/run')) == names


def test_a_folder_that_a_pull_replaces_is_valid_only_after_the_pull(bucket, tmp_path):
    mirror = Mirror(write_files(tmp_path / 'local', step(4)), RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    bucket.put({'run/checkpoints/4/a': b'other', 'run/checkpoints/4/b': b'other'})
    with bucket.failing('deny', 'GET', '4/b', count=9), pytest.raises(UserError, match='denied'):
        mirror.pull()
    assert not (mirror.folder / 'checkpoints/4/seal.json').exists()
    mirror.pull()
    assert list_files(mirror.folder) == list(step(4)) and mirror.publish() == (0, 0)


def test_a_store_that_is_being_rebuilt_is_not_fetched_again(bucket, tmp_path):
    """A build removes the manifest first, and is killed before the next publication."""
    files = dict.fromkeys(('store/manifest.json', 'store/train-00000.tokens', 'store/train.sentences'), 'old')
    local = write_files(tmp_path / 'local', files)
    Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES).publish()
    (local / 'store/manifest.json').unlink()
    write_files(local, {'store/train-00000.tokens': 'new', 'store/partial/00000.json': '{}'})
    resumed = Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES)
    resumed.pull()
    assert (local / 'store/train-00000.tokens').read_text() == 'new' and not (local / 'store/manifest.json').exists()
    write_files(local, {'store/manifest.json': 'new'})
    resumed.publish()
    assert list(bucket.contents('bucket/run').values()) == [b'new', b'new', b'old']


def test_results_whose_publication_broke_off_are_not_removed(bucket, tmp_path):
    """The user runs the same command again, as `UnpublishedError` advises."""
    local = write_files(tmp_path / 'local', step(8))
    Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES).publish()
    write_files(local, {'export/hf/model': 'x', 'export/hf/config.json': '{}'})
    names = list_files(local)
    with bucket.failing('deny', 'PUT', 'json', count=9), pytest.raises(UserError, match='denied'):
        Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES).publish()
    resumed = Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES)
    resumed.pull()
    assert list_files(local) == names
    resumed.publish()
    assert list(bucket.names('bucket/run')) == names


@pytest.mark.slow
def test_the_side_with_the_later_step_wins(bucket, tmp_path):
    one, two = (Mirror(tmp_path / name, RemoteFolder('s3://bucket/run'), RULES) for name in ('one', 'two'))
    write_files(one.folder, {'ledger.jsonl': '4', **step(4)})
    one.publish()
    two.folder.mkdir()
    two.pull()
    write_files(two.folder, {'ledger.jsonl': '4, 8 of two', **step(8)})
    two.publish()
    # Machine one could not reach the bucket. It has a later step that was never published.
    write_files(one.folder, {'ledger.jsonl': '4, 8, 12 of one', **step(12)})
    one.pull()
    assert (one.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one'
    assert {path.name for path in (one.folder / 'checkpoints').iterdir()} == {'4', '8', '12'}
    one.publish()
    write_files(two.folder, {'ledger.jsonl': '4, 8, and what a kill left'})
    two.pull()
    assert (two.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one' and (two.folder / 'checkpoints/12/a').exists()
    # Files that a user removed from the bucket are removed locally too.
    for path in bucket.system.find('bucket/run'):
        bucket.system.rm_file(path)
    two.pull()
    assert not list_files(two.folder)


@pytest.mark.parametrize(
    ('published', 'unpublished', 'expected'),
    [
        ('cola/checkpoints/8', 'cola/checkpoints/12', 'local'),
        ('.unfinished/k/8', '.unfinished/k/12', 'local'),
        ('.unfinished/k/8', '.unfinished/finished-by-another/12', 'bucket'),
    ],
)
def test_only_steps_of_the_same_run_are_compared(bucket, tmp_path, published: str, unpublished: str, expected: str):
    names = ['rte/checkpoints/100/seal.json', f'{published}/seal.json']  # rte is the finished run of another task
    local = write_files(tmp_path / 'local', dict.fromkeys([*names, 'ledger.jsonl'], 'old'))
    Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES).publish()
    write_files(local, {f'{unpublished}/seal.json': 'new', 'ledger.jsonl': 'local'})
    bucket.put({'run/ledger.jsonl': b'bucket'})
    Mirror(local, RemoteFolder('s3://bucket/run'), mirror._RULES).pull()
    assert (local / 'ledger.jsonl').read_text() == expected


def test_the_ledger_of_a_later_unpublished_step_is_kept(bucket, monkeypatch, tmp_path):
    """A publication breaks off after the ledger, and another machine publishes an earlier step with its ledger, and a
    step of another run, whose folder is inside."""
    one, two = (Mirror(tmp_path / name, RemoteFolder('s3://bucket/run'), mirror._RULES) for name in ('one', 'two'))
    inside = {'rte/ledger.jsonl': '4', 'rte/checkpoints/4/seal.json': 'x'}
    write_files(one.folder, {'ledger.jsonl': '4', 'checkpoints/4/seal.json': 'x', **inside})
    one.publish()
    write_files(one.folder, {'ledger.jsonl': '4, 12 of one', 'checkpoints/12/seal.json': 'x'})
    upload = RemoteFolder.upload

    def upload_ledger(self, name, *arguments, **options):
        if name != 'ledger.jsonl':
            raise OSError('the connection broke')
        return upload(self, name, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match='broke'):
        patch.setattr(RemoteFolder, 'upload', upload_ledger)
        one.publish()
    two.folder.mkdir()
    two.pull()
    write_files(two.folder, {f'{run}ledger.jsonl': '4, 8 of two' for run in ('', 'rte/')})
    write_files(two.folder, {f'{run}checkpoints/8/seal.json': 'x' for run in ('', 'rte/')})
    two.publish()
    one.pull()
    assert (one.folder / 'ledger.jsonl').read_text() == '4, 12 of one'
    one.publish()
    assert bucket.system.cat_file('bucket/run/ledger.jsonl') == b'4, 12 of one'
    assert bucket.system.cat_file('bucket/run/rte/ledger.jsonl') == b'4, 8 of two'


@pytest.mark.slow
def test_a_mirror_and_its_lease_in_google_cloud_storage(google, monkeypatch, tmp_path):
    """The fake server ignores preconditions, so the test inspects the requests."""
    one, two = (Mirror(tmp_path / name, RemoteFolder('gs://bucket/run'), RULES) for name in ('one', 'two'))
    owner = lease.Lease(one.remote, 'one')
    owner.take(print)
    write_files(one.folder, {'ledger.jsonl': '4', **step(4), **step(8)})
    assert one.publish() == (7, 7)
    shutil.rmtree(one.folder / 'checkpoints/4')
    (one.folder / 'ledger.jsonl').write_text('4, 8')
    assert one.publish() == (1, 4)
    preconditions, request = [], type(google)._request

    def record_and_request(self, *args, **parameters):
        preconditions.append(parameters.get('ifGenerationMatch'))
        return request(self, *args, **parameters)

    monkeypatch.setattr(type(google), '_request', record_and_request)
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
    generation = one.remote.info('.lease.json').version
    owner.check()
    assert generation == f'generation {next(filter(None, preconditions))}' != one.remote.info('.lease.json').version
    two.folder.mkdir()
    two.pull()
    assert list_files(two.folder) == ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    owner.release()
    assert '.lease.json' not in one.remote.find()


def test_every_format_of_an_export_is_visible_only_when_it_is_complete():
    assert all(mirror._RULES.marker_of(f'export/{name}/README.md') for name in FORMATS)


@pytest.mark.parametrize('task', ['', 'cola/'])  # a sweep, and a sweep over a task of a benchmark
def test_a_checkpoint_of_trials_is_mirrored_only_when_it_is_complete(task: str):
    names = [f'{task}.unfinished/0a1b/12/{name}' for name in ('state', checksums.FILE)]
    assert mirror._RULES.split_complete(names) == (names, [])
    assert mirror._RULES.split_complete(names[:1]) == ([], names[:1])


def test_a_ledger_that_grows_during_its_upload_is_published(bucket, monkeypatch, tmp_path):
    """After half a million steps, the ledger is larger than a single request."""
    monkeypatch.setattr(object_store, 'ONE_REQUEST', 1 << 20)
    ledger, info = tmp_path / 'ledger.jsonl', RemoteFolder.info
    ledger.write_bytes(b'{}\n' * 500_000)

    def train_meanwhile(self, name):
        with ledger.open('ab') as file:
            file.write(b'{}\n')
        return info(self, name)

    monkeypatch.setattr(RemoteFolder, 'info', train_meanwhile)
    Mirror(tmp_path, RemoteFolder('s3://bucket/run'), mirror._RULES).publish()
    assert bucket.system.cat_file('bucket/run/ledger.jsonl') == b'{}\n' * 500_000
