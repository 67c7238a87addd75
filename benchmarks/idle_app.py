"""The app of an idle ``dayjob worker``, on the storage that the environment names."""

from __future__ import annotations

import os

from benchmarks.fleet import make_app

app = make_app(os.environ["BENCHMARK_URL"])
