"""The URLs of the dashboard: ``path("jobs/", include("dayjob.contrib.django.urls"))``."""

from __future__ import annotations

from django.urls import re_path

from dayjob.contrib.django.dashboard import dashboard

app_name = "dayjob"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
