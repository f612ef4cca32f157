"""The admin of the project, and one of its own for the other database."""

from django.contrib import admin
from django.urls import path

from outboxq.contrib.django.admin import TaskExecutionAdmin
from outboxq.contrib.django.models import TaskExecution


class OtherTasks(TaskExecutionAdmin):
    alias = "other"
    show_arguments = False


other = admin.AdminSite(name="other")
other.register(TaskExecution, OtherTasks)

urlpatterns = [path("admin/", admin.site.urls), path("other/", other.urls)]
