"""dayjob in Django: put ``"dayjob.contrib.django"`` into ``INSTALLED_APPS`` and set ``DAYJOB``.

``from dayjob.contrib.django import task`` decorates the functions of an app's ``tasks.py``. ``app`` is the
site's app, and ``DayjobBackend`` the backend for ``TASKS``. Django loads this package before its registry of
apps is complete, so these names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dayjob.contrib.django.backend import DayjobBackend
    from dayjob.contrib.django.site_app import app, task

_LAZY = {
    "DayjobBackend": "dayjob.contrib.django.backend",
    "app": "dayjob.contrib.django.site_app",
    "task": "dayjob.contrib.django.site_app",
}

__all__ = ["DayjobBackend", "app", "task"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
