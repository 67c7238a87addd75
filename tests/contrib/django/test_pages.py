"""The dashboard under WSGI and ASGI, and jobs in the admin: for the staff, by their permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client, TestCase

from dayjob import JobState
from dayjob.contrib.django import app
from dayjob.dashboard.credentials import Credentials
from dayjob.dashboard.sessions import Session, Sessions
from dayjob.testing import drain, sandbox
from tests.contrib.django import django_tasks
from tests.contrib.django.tasks import add
from tests.support.waiting import with_timeout


class Pages(TestCase):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def sandboxed(self, migrated: None) -> Iterator[None]:
        with sandbox(app):
            yield

    def user(self, *permissions: str, staff: bool = True) -> Any:
        user = User.objects.create_user("ada", is_staff=staff)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return user

    def client_of(self, *permissions: str, staff: bool = True) -> Any:
        client = Client()
        client.force_login(self.user(*permissions, staff=staff))
        return client


class Dashboard(Pages):
    def test_others_than_the_staff_are_sent_to_the_login(self) -> None:
        for client in (Client(), self.client_of("change_job", staff=False)):
            for path in ("/jobs/", "/jobs/api/jobs", "/jobs/healthz", "/jobs/events/overview"):
                response = client.get(path)
                assert (response.status_code, response.url.partition("?")[0]) == (302, "/admin/login/")
            assert client.post("/jobs/api/queues/pause", {"queue": "default"}).status_code == 302

    def test_the_pages_are_served_below_their_path(self) -> None:
        handle = add.enqueue(1, 2)
        client = self.client_of()
        page = client.get("/jobs/")
        assert page.status_code == 200
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        style = re.search(r'href="(/jobs/static/[^"]+css[^"]*)"', page.content.decode())
        assert style is not None
        assert client.get(style[1]).status_code == 200
        assert handle.id in client.get("/jobs/jobs?state=pending").content.decode()
        assert client.get(f"/jobs/api/jobs/{handle.id}").json()["task"] == add.name
        assert client.get("/jobs/nowhere").status_code == 404

    def cancel(self, client: Any, id: str, csrf: str | None = None) -> Any:
        client.get(f"/jobs/jobs/{id}")
        session = next(cookie.value for name, cookie in client.cookies.items() if name.startswith("dayjob-"))
        token = csrf or Sessions(Credentials()).csrf(Session(session))
        kind = "application/x-www-form-urlencoded"
        return client.post(f"/jobs/api/jobs/{id}/cancel", f"csrf={token}", content_type=kind)

    def test_the_permission_allows_to_act(self) -> None:
        handle = add.enqueue(1, 2)
        response = self.cancel(self.client_of("change_job"), handle.id)
        assert response.status_code == 200, response.content
        assert handle.status() in (JobState.CANCELLED, None)

    def test_without_the_permission_nothing_is_changed(self) -> None:
        handle = add.enqueue(1, 2)
        response = self.cancel(self.client_of("view_job"), handle.id)
        assert response.status_code == 403
        assert "You may read, but not act" in response.content.decode()
        assert handle.status() is JobState.PENDING

    def test_a_change_needs_the_csrf_token_of_the_dashboard(self) -> None:
        handle = add.enqueue(1, 2)
        assert self.cancel(self.client_of("change_job"), handle.id, csrf="wrong").status_code == 403
        assert handle.status() is JobState.PENDING

    def test_a_live_page_gets_one_update_under_wsgi(self) -> None:
        update = self.client_of().get("/jobs/events/overview")
        assert update.headers["Content-Type"].startswith("text/event-stream")
        assert update.content.count(b"data:") == 1
        assert update.content.startswith(b"retry: 1000\n\n"), "the browser asks again"

    async def test_a_live_page_is_a_stream_under_asgi(self) -> None:
        client = AsyncClient()
        user = await User.objects.acreate(username="grace", is_staff=True)
        await client.aforce_login(user)
        assert (await client.get("/jobs/")).status_code == 200
        response = await client.get("/jobs/events/overview")
        stream = response.streaming_content
        assert await with_timeout(anext(stream)) == b"retry: 1000\n\n"
        assert b"data:" in await with_timeout(anext(stream))
        await stream.aclose()
        await app.close()


class Admin(Pages):
    def test_a_user_without_permission_sees_no_jobs(self) -> None:
        handle = add.enqueue(1, 2)
        client = self.client_of()
        assert client.get("/admin/dayjob/job/").status_code == 403
        assert client.get(f"/admin/dayjob/job/{handle.id}/change/").status_code == 403

    def test_a_reader_sees_jobs_and_changes_none(self) -> None:
        handle = add.enqueue(1, 2)
        client = self.client_of("view_job")
        assert "/admin/dayjob/job/" in client.get("/admin/").content.decode()
        assert handle.id in client.get("/admin/dayjob/job/?state=pending&q=contrib").content.decode()
        assert "No jobs." in client.get("/admin/dayjob/job/?queue=mail").content.decode()
        page = client.get(f"/admin/dayjob/job/{handle.id}/change/").content.decode()
        assert "&quot;other&quot;: 2" in page
        assert 'value="cancel"' not in page
        url = f"/admin/dayjob/job/{handle.id}/change/"
        assert client.post(url, {"action": "cancel"}).status_code == 403
        assert client.get("/admin/dayjob/job/add/").status_code == 404
        assert client.post(f"/admin/dayjob/job/{handle.id}/delete/").status_code == 404
        assert handle.status() is JobState.PENDING

    def test_a_job_is_cancelled(self) -> None:
        handle = add.enqueue(1, 2)
        client = self.client_of("view_job", "change_job")
        url = f"/admin/dayjob/job/{handle.id}/change/"
        assert 'value="cancel"' in client.get(url).content.decode()
        assert client.post(url, {"action": "cancel"}).status_code == 302
        assert handle.status() in (JobState.CANCELLED, None)
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.change_message) == (handle.id, "Cancelled")

    def test_a_dead_job_is_requeued(self) -> None:
        id = django_tasks.fail.enqueue("no").id
        drain(app, raises=False)
        client = self.client_of("view_job", "change_job")
        url = f"/admin/dayjob/job/{id}/change/"
        page = client.get(url).content.decode()
        assert "ValueError: no" in page
        assert 'value="cancel"' not in page
        client.post(url, {"action": "requeue"})
        assert app.job(id).status() is JobState.PENDING
        assert (
            "could not be requeued" in client.post(url, {"action": "requeue"}, follow=True).content.decode()
        )

    def test_changes_need_djangos_csrf_token(self) -> None:
        handle = add.enqueue(1, 2)
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user("view_job", "change_job"))
        url = f"/admin/dayjob/job/{handle.id}/change/"
        assert client.post(url, {"action": "cancel"}).status_code == 403

    def test_pages_follow_each_other(self) -> None:
        add.enqueue_many([(number, 0) for number in range(60)])
        client = self.client_of("view_job")
        first = client.get("/admin/dayjob/job/").content.decode()
        following = re.search(r'href="(\?[^"]+)">Older jobs', first)
        assert following is not None
        second = client.get(f"/admin/dayjob/job/{following[1].replace('&amp;', '&')}").content.decode()
        assert (first.count("/change/"), second.count("/change/")) == (50, 10)
        assert "Older jobs" not in second

    def test_an_unknown_job_is_not_found(self) -> None:
        assert self.client_of("view_job").get("/admin/dayjob/job/0197/change/").status_code == 404
