"""An admin site with the dashboard of its database, and an admin site of the other database, without a dashboard."""

from django.contrib import admin
from django.urls import include, path

from outboxq.contrib.django.admin import DeadLetterAdmin, TaskExecutionAdmin
from outboxq.contrib.django.dashboard import dashboard_urls
from outboxq.contrib.django.models import DeadLetter, TaskExecution


class OtherTasks(TaskExecutionAdmin):
    alias = "other"
    show_arguments = False


class OtherDeadLetters(DeadLetterAdmin):
    alias = "other"


other = admin.AdminSite(name="other")
other.register(TaskExecution, OtherTasks)
other.register(DeadLetter, OtherDeadLetters)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("other/", other.urls),
    path("outboxq/", include(dashboard_urls())),
]
