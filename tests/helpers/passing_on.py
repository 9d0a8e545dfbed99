"""The least that runs a command as `ckptsync exec` does: `python passing_on.py leave|kill|pass COMMAND...`.

The first word says what becomes of what the command has left behind; `pass` gives it the signal that ended the command.
"""

import os
import signal
import sys

from ckptsync.resume.running.child import CannotStart, Child
from ckptsync.resume.running.signals import Signals


def main(rest, *command):
    with Signals() as signals:
        signals.queue_them()
        try:
            child = Child(command, env=dict(os.environ))
        except CannotStart as error:
            return error.exit_status
        while child.ended is None or (rest == "pass" and not child.alone):
            signals.wait(60.0, child.fileno())
            for number in signals.take():
                child.pass_on(number)
            before = child.ended
            child.look()
            if child.ended is not before and rest == "pass":
                child.pass_to_rest(-child.ended.code)
        child.kill() if rest == "kill" else child.leave()
    return child.ended.shell_code


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(*sys.argv[1:]))
