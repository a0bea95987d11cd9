#!/usr/bin/env python3
"""Stands in for gcloud, kubectl and sbatch: writes down how it was called, and does what the test's plan says.

FAKE is a folder: `calls` gets a line a call, JSON; `plan` is JSON, and changes:
  exists   whether there is a slice
  states   of slices that will be created: for each the states that it is found in, the last one for good
  ends     how the training ends that is followed, one after the other: a status, or 'preempted'
  create   statuses of the creations
"""

import json
import os
import pathlib
import sys

folder = pathlib.Path(os.environ['FAKE'])
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
given = sys.stdin.read() if name in ('kubectl', 'sbatch') else ''
with (folder / 'calls').open('a') as calls:
    calls.write(json.dumps([name, *arguments, *([given] if given else [])]) + '\n')
plan = json.loads((folder / 'plan').read_text())


def act() -> int:
    said = ' '.join(arguments)
    if name != 'gcloud':
        return plan.get('status', 0)
    if ' queued-resources create ' in f' {said} ':
        status = plan['create'].pop(0) if plan.get('create') else 0
        plan['exists'] = status == 0
        return status
    if ' queued-resources describe ' in f' {said} ':
        if not plan.get('exists'):
            return 1
        states = plan['states'][0]
        print(states.pop(0) if len(states) > 1 else states[0])
        return 0
    if ' queued-resources delete ' in f' {said} ':
        if plan.get('exists') and len(plan['states']) > 1:
            plan['states'].pop(0)
        plan['exists'] = False
        return 0
    if 'tail -n +1 -F' in said:
        end = plan['ends'].pop(0)
        if end == 'preempted':
            plan['states'][0] = ['SUSPENDED']
            return 255
        return end
    return 0


status = act()
(folder / 'plan').write_text(json.dumps(plan))
sys.exit(status)
