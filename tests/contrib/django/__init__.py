"""A Django site in this process, on a SQLite file. ``dayjob.contrib.django`` sets Django up."""

import atexit
import os
import shutil
import tempfile

FOLDER = f"DAYJOB_TEST_DJANGO_{os.environ.get('PYTEST_XDIST_WORKER', 'FOLDER')}"
"""The environment variable with the site's folder, for child processes. Each test process has its own."""

if FOLDER not in os.environ:
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="dayjob-django-")
    atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)

BEFORE = {name: os.environ.get(name) for name in ("DJANGO_SETTINGS_MODULE", "TZ")}
"""The variables that Django reads and sets. conftest.py restores them, for the processes of other tests."""

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.django.settings"
