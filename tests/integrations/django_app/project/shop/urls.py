from django.urls import path

from shop import views

urlpatterns = [path("place/<str:number>/", views.place), path("async/<str:number>/", views.place_async)]
