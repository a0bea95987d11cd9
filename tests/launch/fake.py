#!/usr/bin/env -S python3 -I -S
"""Stands in for gcloud, kubectl and sbatch: writes down how it was called, and does what the test's plan says.

FAKE is a folder: `calls` gets a line a call, JSON; `plan` is JSON, and changes:
  exists   whether there is a slice
  states   of slices that will be created: for each the states that its request is found in, the last one for good
  machines the state of its machines
  running  whether a training runs
  ends     how the training ends that is followed, one after the other: a status; 'none', when a machine was started
           anew; 'preempted'; 'dropped', when only the connection ends; 'cut', when the next question is not
           answered either
  others   how the other machines ended, statuses
  plan_status  that of kubectl apply and sbatch
  create   statuses of the creations
  fails    how often a call with this word in it fails, {word: times}; with the words of a network that is down
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
    others = [word for word in arguments[2:] if not word.startswith('-') or word.startswith('--selector')]
    if name == 'kubectl' and '/' in arguments[1] and others:
        print('error: there is no need to specify a resource type as a separate argument', file=sys.stderr)
        return 1
    if name != 'gcloud':
        if 'get' in arguments and plan.get('exists'):
            print('jobset.jobset.x-k8s.io/bert')
        return plan.get('plan_status', 0) if arguments[:1] != ['get'] and arguments[:1] != ['delete'] else 0
    for word, times in plan.get('fails', {}).items():
        if times and word in said:
            plan['fails'][word] -= 1
            print('ERROR: gcloud crashed (ConnectionError): Failed to resolve tpu.googleapis.com', file=sys.stderr)
            return 1
    if 'queued-resources create ' in said:
        status = plan['create'].pop(0) if plan.get('create') else 0
        plan['exists'], plan['running'] = status == 0, False
        return status
    if 'describe ' in said:
        if not plan.get('exists'):
            print('ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource was not found', file=sys.stderr)
            return 1
        if 'tpu-vm describe' in said:
            print(plan.get('machines', 'READY'))
            return 0
        states = plan['states'][0]
        print(states.pop(0) if len(states) > 1 else states[0])
        return 0
    if 'queued-resources delete ' in said:
        if plan.get('exists') and len(plan['states']) > 1:
            plan['states'].pop(0)
        plan['exists'] = False
        return 0
    if 'nohup' in said:
        plan['running'] = True
    if 'tail -n +1 -F' in said:
        end = plan['ends'].pop(0)
        if end == 'preempted':
            plan['states'][0] = ['SUSPENDED']
        elif end == 'cut':
            plan['fails'] = {'training=': 1}
        elif end != 'dropped':
            plan['running'], plan['ended'] = False, end
        return 255
    if 'ended=' in said:
        print(*(f'ended={status}' for status in [plan['ended'], *plan.get('others', [])]), sep='\n')
    if 'training=' in said:
        if plan['states'][0] == ['SUSPENDED']:
            return 255
        print('training=' + ('running' if plan.get('running') else str(plan.get('ended', 'none'))))
    return 0


status = act()
(folder / 'plan').write_text(json.dumps(plan))
sys.exit(status)
