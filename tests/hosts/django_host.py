"""A Django project in one module: settings, a view that enqueues a job, and an app that runs a worker."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.apps import AppConfig
from django.http import HttpResponse
from django.urls import path

from tests.hosts.jobs import WorkerThread, of_this_host

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = __name__
INSTALLED_APPS = [f"{__name__}.JobsConfig"]

jobs = of_this_host()


class JobsConfig(AppConfig):  # type: ignore[misc]
    name = "tests.hosts"

    def ready(self) -> None:
        """Run a worker, but not in the reloader's parent process, which runs this too."""
        if "--noreload" in sys.argv:
            WorkerThread(jobs).stop_on_sigterm()
        elif os.environ.get("RUN_MAIN") == "true":
            WorkerThread(jobs)


def enqueue(_: Any) -> HttpResponse:
    return HttpResponse(jobs.quick.enqueue().id)


urlpatterns = [path("", enqueue)]
