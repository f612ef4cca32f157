"""A Django project with the admin, and outboxq in two databases. The test names the first one."""

import os
from urllib.parse import urlsplit

_url = urlsplit(os.environ["ADMIN_DATABASE"])
_memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
_server = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": _url.path.removeprefix("/"),
    "USER": _url.username,
    "PASSWORD": _url.password,
    "HOST": _url.hostname,
    "PORT": _url.port,
    "TEST": {"NAME": _url.path.removeprefix("/")},
}

DATABASES = {"default": _server if _url.hostname else _memory, "other": dict(_memory)}
SECRET_KEY = "for tests"
USE_TZ = True
ROOT_URLCONF = "admin_urls"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "outboxq.contrib.django",
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
# Create the tables of Django's own apps without their 18 migrations, which take a second.
MIGRATION_MODULES = dict.fromkeys(("admin", "auth", "contenttypes", "sessions"))
