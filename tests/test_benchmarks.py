"""Benchmarks leave out what takes too long on a processor, and the scaling law is their fit."""

import json

import pytest

from bertjax.pretrain import scaling_law


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


def test_the_constants_of_the_scaling_law_are_those_of_the_fit(monkeypatch, repository):
    monkeypatch.syspath_prepend(repository / 'benchmarks')
    import ladder_report

    runs = json.loads((repository / 'docs' / 'results' / 'scaling.json').read_text())['runs']
    constants = f'FLOOR {scaling_law.FLOOR:.3f}, PARAMETERS_FACTOR {scaling_law.PARAMETERS_FACTOR:.3g}'
    fit = f'{constants}, TOKENS_FACTOR {scaling_law.TOKENS_FACTOR:.3g}; 17 runs, mean error 0.009 bits per byte, '
    assert ladder_report.fit(runs) == f'{fit}largest 0.016'
    h200 = json.loads((repository / 'docs' / 'results' / 'h200.json').read_text())
    parameters, positions = 12 * 512 * (4 * 512 + 3 * 1376), 512 * 64 * h200['steps']
    assert scaling_law.bits_per_byte(parameters, positions) == pytest.approx(h200['bits_per_byte'], abs=0.02)
