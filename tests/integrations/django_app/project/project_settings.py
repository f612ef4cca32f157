"""A project with two databases, which the test passes as JSON."""

import json
import os

SECRET_KEY = "not a secret"
INSTALLED_APPS = ["outboxq.contrib.django", "shop"]
ROOT_URLCONF = "shop.urls"
MIDDLEWARE = []
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = json.loads(os.environ["SHOP_DATABASES"])
globals().update(json.loads(os.environ.get("SHOP_SETTINGS", "{}")))
