"""The app of the Django site. The import sets Django up where ``manage.py`` has not, as in child processes.

Django's registry imports ``tasks.py`` of each app, and these import ``task``. So the app exists first.
"""

from __future__ import annotations

import django
from django.apps import apps

from dayjob.contrib.django.django_app import DjangoApp

app = DjangoApp()
task = app.task

if not apps.loading:
    django.setup()
