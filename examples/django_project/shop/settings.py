"""Settings. The broker is `mqcore serve --listen emqp://127.0.0.1:47290`, or another one in MQCORE_JOBS_URL."""

import os
import tempfile
from importlib.util import find_spec

# Django 6.0 has django.tasks; for older versions, the package django-tasks is the same.
INSTALLED_APPS = ["mqcore.django", *(["django_tasks"] if find_spec("django.tasks") is None else [])]
TASKS = {
    "default": {
        "BACKEND": "mqcore.django.TaskBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ.get("MQCORE_JOBS_URL", "emqp://127.0.0.1:47290"), "timeout": "5m"},
    }
}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", os.path.join(tempfile.gettempdir(), "shop.sqlite3")),
    }
}
SECRET_KEY = "for this example only"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
USE_TZ = True
