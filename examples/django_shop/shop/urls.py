from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("orders", views.place_order),
    path("orders/<uuid:order_id>", views.show_order),
]
