"""The app of ``dayjob worker tests.chaos.supervised:app``, whose processes record their calls.

They write no ``Closed``: each counts as killed.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos import load
from tests.chaos.record import Opened, Record
from tests.chaos.recorder import Recorder
from tests.support.servers.redis_clock import read_shifted_clock
from tests.support.shifted_clock import SharedOffset, shift_clock

FOLDER = "DAYJOB_CHAOS_FOLDER"
"""The environment variable with the folder of the record."""

app = load.app

if FOLDER in os.environ:
    _folder = Path(os.environ[FOLDER])
    shift_clock(SharedOffset(_folder / "clock").get)
    read_shifted_clock()
    _record = Record(_folder, f"supervised-{os.getpid()}")
    _record.write(Opened(pid=os.getpid(), role="supervised", announces=True))
    _recorder = Recorder(_record)
    _recorder.announce(app)
    load.use_record(_record)
    _recorder.install()
