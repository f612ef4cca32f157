"""Links between the pages of the admin."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html


def has_pages(site: admin.AdminSite, model: Any, alias: str, request: Any) -> bool:
    """Return whether the site shows this model of this database to the user of the request."""
    if not site.is_registered(model):
        return False
    shown = site.get_model_admin(model)
    return getattr(shown, "alias", alias) == alias and bool(shown.has_view_permission(request))


def page_of(site: admin.AdminSite, model: Any, page: str, *args: object, **query: object) -> str:
    """Return the address of a page of the model: `changelist`, `change`, or one of its own."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"  # noqa: SLF001 - Django's public name for it
    address = reverse(name, args=args, current_app=site.name)
    return f"{address}?{urlencode(query)}" if query else address


def short_id(key: object, address: str = "") -> Any:
    """Return the beginning of an id (its time) and its end (random digits), with the whole id as tooltip."""
    text = str(key)
    short = format_html('<span class="outboxq-id" title="{}">{}…{}</span>', text, text[:8], text[-4:])
    return format_html('<a href="{}">{}</a>', address, short) if address else short
