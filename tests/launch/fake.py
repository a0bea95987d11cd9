#!/usr/bin/env -S python3 -I -S
"""Replaces gcloud, kubectl and sbatch: records each call and behaves as the plan of the test says.

The environment variable FAKE names a folder. The file `calls` has a JSON line for each call. The file `plan` is a JSON
object, which the calls update:
  exists       Whether there is a slice.
  states       For each slice that will be created, the list of successive states of its request. The last one stays.
  machines     The state of the machines of the slice.
  running      Whether a training is running.
  ends         How each followed training ends: an exit status; 'none' if the machine was restarted; 'preempted';
               'dropped' if only the connection ends; 'cut' if, in addition, the next query fails.
  others       The exit statuses on the other machines.
  plan_status  The exit status of kubectl apply and sbatch.
  create       The exit statuses of the creations.
  fails        {word: times}: how many calls that contain the word fail, with the message of a network failure.
"""

import json
import os
import pathlib
import sys

folder = pathlib.Path(os.environ['FAKE'])
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
stdin = sys.stdin.read() if name in ('kubectl', 'sbatch') else ''
with (folder / 'calls').open('a') as calls:
    calls.write(json.dumps([name, *arguments, *([stdin] if stdin else [])]) + '\n')
plan = json.loads((folder / 'plan').read_text())


def act() -> int:
    line = ' '.join(arguments)
    others = [word for word in arguments[2:] if not word.startswith('-') or word.startswith('--selector')]
    if name == 'kubectl' and '/' in arguments[1] and others:
        print('error: there is no need to specify a resource type as a separate argument', file=sys.stderr)
        return 1
    if name != 'gcloud':
        if 'get' in arguments and plan.get('exists'):
            print('jobset.jobset.x-k8s.io/bert')
        return plan.get('plan_status', 0) if arguments[:1] != ['get'] and arguments[:1] != ['delete'] else 0
    for word, times in plan.get('fails', {}).items():
        if times and word in line:
            plan['fails'][word] -= 1
            print('ERROR: gcloud crashed (ConnectionError): Failed to resolve tpu.googleapis.com', file=sys.stderr)
            return 1
    if 'queued-resources create ' in line:
        status = plan['create'].pop(0) if plan.get('create') else 0
        plan['exists'], plan['running'] = status == 0, False
        return status
    if 'describe ' in line:
        if not plan.get('exists'):
            print('ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource was not found', file=sys.stderr)
            return 1
        if 'tpu-vm describe' in line:
            print(plan.get('machines', 'READY'))
            return 0
        states = plan['states'][0]
        print(states.pop(0) if len(states) > 1 else states[0])
        return 0
    if 'queued-resources delete ' in line:
        if plan.get('exists') and len(plan['states']) > 1:
            plan['states'].pop(0)
        plan['exists'] = False
        return 0
    if 'nohup' in line:
        plan['running'] = True
    if 'tail -n +1 -F' in line:
        end = plan['ends'].pop(0)
        if end == 'preempted':
            plan['states'][0] = ['SUSPENDED']
        elif end == 'cut':
            plan['fails'] = {'training=': 1}
        elif end != 'dropped':
            plan['running'], plan['ended'] = False, end
        return 255
    if 'ended=' in line:
        print(*(f'ended={status}' for status in [plan['ended'], *plan.get('others', [])]), sep='\n')
    if 'training=' in line:
        if plan['states'][0] == ['SUSPENDED']:
            return 255
        print('training=' + ('running' if plan.get('running') else str(plan.get('ended', 'none'))))
    return 0


status = act()
(folder / 'plan').write_text(json.dumps(plan))
sys.exit(status)
