"""config.beam, through the program: the vocabularies and the store are those that this machine makes alone."""

import pathlib

import pytest
from running import Program

BEAM = '--config.beam=--runner=DirectRunner'


@pytest.mark.slow
def test_vocabularies_and_the_store_have_the_same_bytes(program: Program, tmp_path: pathlib.Path):
    pytest.importorskip('apache_beam', reason='needs the extra beam')
    copy = tmp_path / 'copy.txt'
    copy.write_bytes(program.corpus.read_bytes()[:4000])
    mixture = f'--config.corpus={program.corpus}=auto,{copy}=auto'
    for name, flags in {
        'corpus': ['--config.run=corpus', '--config.corpus_options.drop_duplicates=True', '--config.vocab.size=60'],
        'mixture': ['--config.run=vocab', mixture],
        'sentencepiece': ['--config.run=vocab', '--config.vocab.family=sentencepiece', mixture],
        'symbols': ['--config.run=vocab', '--config.vocab.family=symbols'],
    }.items():
        made = []
        for beam in ('', BEAM):
            folder = tmp_path / (name + beam[:6])
            program.run(f'--workdir={folder}', *flags, *filter(None, [beam]))
            files = [path for path in folder.rglob('*') if path.is_file()]
            made.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
        assert made[0] == made[1] and len(made[0]) > 3, name
    given = (f'--config.tokenizer={tmp_path}/corpus/tokenizer', '--config.run=vocab', '--config.vocab.candidates=5')
    for beam in ('', BEAM):
        program.run(f'--workdir={tmp_path}/words{beam[:6]}', *given, *filter(None, [beam]))
    found = [(tmp_path / f'words{beam[:6]}' / 'candidates.txt').read_bytes() for beam in ('', BEAM)]
    assert found[0] == found[1] and found[0].count(b'\n') == 5
    refused = program.error(f'--workdir={tmp_path}/bpe', '--config.run=vocab', '--config.vocab.family=bpe', BEAM)
    assert 'byte-level BPE' in refused
