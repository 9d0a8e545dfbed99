"""A process that has imported everything and forks one child per request, so that a command starts in milliseconds.

Requests and replies are lines of JSON: {"argv": [...], "out": file, "err": file, "crash": label or null, "nth": 1,
"environ": {...}, "stdin": file} starts the command line and is answered with the child's pid; {"wait": pid} with its
exit code. The children are real processes that run the real command line; only the times of `[watch]` are shorter than
users may set them, and the pauses between looks, retries and restarts; with "limits" also the times for requests to the
store.
"""

import importlib
import json
import os
import sys
import traceback

from ckptsync import config
from ckptsync.actions import push
from ckptsync.actions.starts import pause_s
from ckptsync.daemon import service
from ckptsync.store.options import StoreOptions
from ckptsync.store.retrying import RetryingStore
from ckptsync.testing import crash

SETTLE_S, SCAN_INTERVAL_S, LOOK_S = 0.06, 0.03, 0.02
_MODULES = (
    "ckptsync.actions.notes",
    "ckptsync.actions.pull",
    "ckptsync.actions.push",
    "ckptsync.actions.retain",
    "ckptsync.actions.select",
    "ckptsync.actions.exec",
    "ckptsync.cli.countdown",
    "ckptsync.cli.exec",
    "ckptsync.cli.main",
    "ckptsync.cli.pin",
    "ckptsync.cli.pull",
    "ckptsync.cli.push",
    "ckptsync.cli.retain",
    "ckptsync.cli.run",
    "ckptsync.cli.select",
    "ckptsync.cli.status",
    "ckptsync.cli.steps",
    "ckptsync.cli.verify",
    "ckptsync.cli.wait",
    "ckptsync.config_paths",
    "ckptsync.daemon.service",
    "ckptsync.layouts.plain",
    "ckptsync.layouts.verl",
    "ckptsync.layouts.verl_layered",
    "ckptsync.store.objects",
    "ckptsync.store.options",
    "ckptsync.units",
    "rich.progress",
)
_load = config.load


def _load_quick(*arguments, **options):
    loaded = _load(*arguments, **options)
    quick = {"settle": SETTLE_S, "scan_interval": SCAN_INTERVAL_S}
    return loaded.model_copy(update={"watch": loaded.watch.model_copy(update=quick)})


def _limit(request_s, retry_s):
    """Shorten how long a request to the store may take, and for how long it is tried again."""
    StoreOptions.__init__.__defaults__ = (*StoreOptions.__init__.__defaults__[:-2], request_s, request_s)
    RetryingStore.__init__.__kwdefaults__.update(base_s=0.25, cap_s=1.0, deadline_s=retry_s)


def _child(request):
    for number, name in ((1, request["out"]), (2, request["err"])):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.dup2(os.open(request.get("stdin") or os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.get("environ") or {})
    if request.get("crash"):
        crash.arm(request["crash"], request.get("nth", 1))
    if request.get("limits"):
        _limit(**request["limits"])
    code = importlib.import_module("ckptsync.cli.main").main(request["argv"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _fork(request):
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = _child(request)
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as a second server
        traceback.print_exc()
    os._exit(code)


def _wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    config.load = _load_quick
    RetryingStore.__init__.__kwdefaults__.update(base_s=0.01, cap_s=0.05)
    pause_s.__defaults__ = (0.05,)
    push._POLL_S = service._ONCE_PAUSE_S = LOOK_S
    for name in _MODULES:
        importlib.import_module(name)
    replies = os.fdopen(os.dup(1), "w")
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        replies.write(f"{_wait(request['wait']) if 'wait' in request else _fork(request)}\n")
        replies.flush()


if __name__ == "__main__":
    main()
