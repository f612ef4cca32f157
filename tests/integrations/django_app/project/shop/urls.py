from django.urls import path

from outboxq.contrib.django import outbox
from outboxq.contrib.django.webhooks import webhook_view
from shop import tasks, views

urlpatterns = [
    path("hooks/erp/", webhook_view(outbox, tasks.erp)),
    path("place/<str:number>/", views.place),
    path("async/<str:number>/", views.place_async),
]
