"""The settings of a Django site. Child processes get its databases from the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.contrib import django

FOLDER = Path(os.environ[django.FOLDER])
POSTGRES, STORE = "DAYJOB_TEST_DJANGO_POSTGRES", "DAYJOB_TEST_DJANGO_STORE"
"""The environment variables with the settings of a PostgreSQL database and ``DAYJOB``, as JSON."""

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": str(FOLDER / "site.db"),
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
TIME_ZONE = "UTC"
USE_TZ = True
ROOT_URLCONF = "tests.contrib.django.urls"
DATABASES = {
    "default": SQLITE,
    "other": {**SQLITE, "NAME": str(FOLDER / "other.db")},
    "pg": {"ENGINE": "django.db.backends.postgresql", **json.loads(os.environ.get(POSTGRES, "{}"))},
}
DAYJOB = json.loads(os.environ.get(STORE, '{"DATABASE": "default"}'))
TASKS = {"default": {"BACKEND": "dayjob.contrib.django.DayjobBackend", "QUEUES": ["default", "mail"]}}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "dayjob.contrib.django",
    "tests.contrib.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
