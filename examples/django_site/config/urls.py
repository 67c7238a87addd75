from django.contrib import admin
from django.urls import include, path
from shop import views

urlpatterns = [
    path("", views.orders),
    path("orders/<int:pk>", views.order),
    path("admin/", admin.site.urls),
    path("jobs/", include("dayjob.contrib.django.urls")),
]
