"""Small compiled programs as XLA prints them, written by hand."""

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
NO_ESTIMATE = CYCLES % (2**63 - 1)
PATH = 'jit(step)/jvp(Bert)/encoder/while/body/closed_call/layers'


def named(path: str) -> str:
    """Returns the metadata that gives an instruction the name of its operation."""
    return f'metadata={{op_name="{path}"}}'


def loop(
    bound: str = 'constant(12)', start: str = 'constant(0)', step: str = 'constant(1)', direction: str = 'LT'
) -> str:
    """Returns a program with a loop; each iteration is a fusion of 100 cycles.

    The loop adds `step` to a counter from `start` on, while the comparison `direction` of the counter with `bound` is
    true.
    """
    return f"""HloModule jit_step, is_scheduled=true

%double (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %twice = f32[8]{{0}} add(%p, %p)
}}

%condition (c: (s32[], f32[8])) -> pred[] {{
  %c = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %bound = s32[] {bound}
  ROOT %goes_on = pred[] compare(%i, %bound), direction={direction}
}}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %b = (s32[], f32[8]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %step = s32[] {step}
  %next = s32[] add(%j, %step), backend_config={{}}
  %y = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%double, {named(PATH + '/mlp/add')}, {CYCLES % 100}
  ROOT %both = (s32[], f32[8]{{0}}) tuple(%next, %y)
}}

ENTRY %main (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  %start = s32[] {start}
  %begin = (s32[], f32[8]{{0}}) tuple(%start, %a)
  %while.1 = (s32[], f32[8]{{0}}) while(%begin), condition=%condition, body=%body
  ROOT %result = f32[8]{{0}} get-tuple-element(%while.1), index=1
}}
"""


def straight(*lines: str, computations: str = '') -> str:
    """Returns a program of these instructions over the parameter %a, 8 MB in HBM."""
    body = '\n'.join(f'  {line}' for line in lines)
    return f"""HloModule jit_step, is_scheduled=true

{computations}

ENTRY %main (a: f32[2000000]) -> f32[2000000] {{
  %a = f32[2000000]{{0}} parameter(0)
{body}
}}
"""
