"""config.beam: a Beam runner makes the same vocabularies and the same store as one machine without Beam."""

import pathlib
import time

import pytest
from running import Program

BEAM = '--config.beam=--runner=DirectRunner'


@pytest.mark.slow
def test_vocabularies_and_the_store_have_the_same_bytes(program: Program, tmp_path: pathlib.Path):
    pytest.importorskip('apache_beam', reason="needs the extra 'beam'")
    copy = tmp_path / 'copy.txt'
    copy.write_bytes(program.corpus.read_bytes()[:4000])
    mixture = f'--config.corpus={program.corpus}=auto,{copy}=auto'
    for name, flags in {
        'corpus': ['--config.run=corpus', '--config.corpus_options.drop_duplicates=True', '--config.vocab.size=60'],
        'sentencepiece': ['--config.run=vocab', '--config.vocab.family=sentencepiece', mixture],
    }.items():
        contents = []
        for beam in ('', BEAM):
            folder = tmp_path / (name + beam[:6])
            program.run(f'--workdir={folder}', *flags, *filter(None, [beam]))
            files = [path for path in folder.rglob('*') if path.is_file()]
            contents.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
        assert contents[0] == contents[1] and len(contents[0]) > 3, name
    given = (f'--config.tokenizer={tmp_path}/corpus/tokenizer', '--config.run=vocab', '--config.vocab.candidates=5')
    for beam in ('', BEAM):
        program.run(f'--workdir={tmp_path}/words{beam[:6]}', *given, *filter(None, [beam]))
    candidates = [(tmp_path / f'words{beam[:6]}' / 'candidates.txt').read_bytes() for beam in ('', BEAM)]
    assert candidates[0] == candidates[1] and candidates[0].count(b'\n') == 5
    line = program.error(f'--workdir={tmp_path}/bpe', '--config.run=vocab', '--config.vocab.family=bpe', BEAM)
    assert 'byte-level BPE' in line


@pytest.mark.slow
def test_a_dask_cluster_makes_the_same_bytes(dask_cluster, program: Program, tmp_path: pathlib.Path):
    flags = ['--config.run=corpus', '--config.corpus_options.drop_duplicates=True', '--config.vocab.size=60']
    contents = []
    for name, beam in (('here', ''), ('dask', dask_cluster.flags)):
        program.run(f'--workdir={tmp_path / name}', *flags, f'--config.beam={beam}')
        files = [path for path in (tmp_path / name).rglob('*') if path.is_file()]
        contents.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert contents[0] == contents[1] and len(contents[0]) > 3


@pytest.mark.slow
def test_a_missing_dask_scheduler_is_a_one_line_error(program: Program, tmp_path: pathlib.Path):
    pytest.importorskip('apache_beam', reason="needs the extra 'dask'")
    pytest.importorskip('distributed', reason="needs the extra 'dask'")
    beam = '--config.beam=--runner=DaskRunner --dask_client_address=tcp://127.0.0.1:1 --dask_connection_timeout=1'
    start = time.monotonic()
    line = program.error(f'--workdir={tmp_path}/run', '--config.run=corpus', beam)
    assert 'config.beam: found no Dask scheduler at tcp://127.0.0.1:1' in line and time.monotonic() - start < 60
    assert not (tmp_path / 'run' / 'store').exists()
