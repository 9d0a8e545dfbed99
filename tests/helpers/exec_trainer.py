"""The trainer of the tests of `exec`: `python exec_trainer.py LOG OUTPUT_DIR PLANS ARGUMENTS...`.

PLANS has a plan for each start, with `;` between them (the last one is for all others, too): words such as `save:20`,
`big:20`, `layered:20`, `die:9` (by a signal), `exit:3`, `wait` (until killed), `term:40` (SIGTERM saves step 40, a big
one, and exits with 5), `orphan` (leaves a process in a session of its own), `stdin`, `meet` (waits until the trainers
that log beside it have started as often, as ranks do). Each start appends a line of JSON to LOG, with its pid,
arguments and environment; signals that come, orphans, and what was read follow.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ckptsync.testing.checkpoints import layered_step, verl_step


def log(**entry):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(entry) + "\n")


def starts(log_file):
    lines = log_file.read_text().splitlines() if log_file.exists() else []
    return sum("pid" in json.loads(line) for line in lines)


def meet(out, value):
    mine = Path(sys.argv[1])
    while min(map(starts, mine.parent.glob("log-*"))) < starts(mine):
        time.sleep(0.01)


def term(out, step):
    def save(number, frame):
        log(signal="TERM")
        verl_step(out, step, n=200_000)
        os._exit(5)

    signal.signal(signal.SIGTERM, save)


def orphan(out, value):
    log(orphan=subprocess.Popen(["sleep", "600"], start_new_session=True).pid)


def wait(out, value):
    log(ready=True)
    while True:
        signal.pause()


WORDS = {
    "save": verl_step,
    "big": lambda out, step: verl_step(out, step, n=200_000),
    "layered": lambda out, step: layered_step(out, step, rollout=False),
    "term": term,
    "meet": meet,
    "orphan": orphan,
    "wait": wait,
    "stdin": lambda _out, _value: log(stdin=sys.stdin.read()),
    "die": lambda _out, number: os.kill(os.getpid(), number),
    "exit": lambda _out, code: os._exit(code),
}


def main():
    out, plans = Path(sys.argv[2]), sys.argv[3].split(";")
    plan = plans[min(starts(Path(sys.argv[1])), len(plans) - 1)]
    log(pid=os.getpid(), args=sys.argv[4:], env=dict(os.environ), cwd=os.getcwd())
    for step in plan.split():
        word, _, value = step.partition(":")
        WORDS[word](out, int(value or 0))


if __name__ == "__main__":
    main()
