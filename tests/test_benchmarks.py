"""Benchmarks leave out what takes too long on a processor."""

import pytest


@pytest.mark.parametrize('flags', ['flags\t\t: fpu avx2', 'flags\t\t: avx2 amx_bf16', 'Features\t: asimd bf16', None])
def test_pytorch_in_bfloat16_is_left_out_where_it_takes_minutes(flags, tmp_path, monkeypatch, capsys, repository):
    monkeypatch.syspath_prepend(repository / 'benchmarks')
    import processor

    if flags:
        (tmp_path / 'cpuinfo').write_text(f'processor\t: 0\n{flags}\n')
    monkeypatch.setattr(processor, 'CPUINFO', tmp_path / 'cpuinfo')
    has_bfloat16 = not flags or 'bf16' in flags
    assert processor.native(['sdpa', 'sdpa-bfloat16']) == ['sdpa', *['sdpa-bfloat16'] * has_bfloat16]
    assert ('left out' in capsys.readouterr().out) is not has_bfloat16
