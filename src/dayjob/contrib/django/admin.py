"""Jobs in the admin: read with ``dayjob.view_job``, cancelled and requeued with ``dayjob.change_job``.

The pages read the store through the read model, as the dashboard does, and not through the ORM. Values whose
names look like secrets are hidden.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect

from dayjob import DayjobError, Explanation, JobState
from dayjob import Job as Record
from dayjob.contrib.django.models import Job
from dayjob.contrib.django.site_app import app
from dayjob.inspect import Filter, Inspector, Page, Redaction
from dayjob.inspect.json_fields import indented

PAGE = 50
SHOWN = 20_000
"""How many characters of arguments and results a page shows."""

_REDACTION = Redaction()


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The pages of jobs."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        """Return the list and the page of a job: the other pages of a model need its table."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="dayjob_job_changelist"),
            path("<path:object_id>/change/", view(self.change_view), name="dayjob_job_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        given = {name: request.GET.get(name) or None for name in ("queue", "task", "q")}
        state = request.GET.get("state")
        wanted = Filter(
            state=JobState(state) if state in list(JobState) else None,
            queue=given["queue"], task=given["task"], text=given["q"],
        )  # fmt: skip

        async def read() -> tuple[Inspector, Page]:
            inspector = Inspector(await app.opened(), _REDACTION)
            return inspector, await inspector.page(wanted, request.GET.get("after"), PAGE)

        try:
            inspector, page = app.call(read)
        except DayjobError as error:
            return self._page(request, "Jobs", "jobs", problem=str(error))
        jobs = [(job, inspector.arguments(job)) for job in page.jobs]
        following = request.GET.copy()
        following["after"] = page.after
        return self._page(
            request, "Jobs", "jobs", jobs=jobs, states=list(JobState), given=request.GET,
            following=following.urlencode() if page.after else "",
        )  # fmt: skip

    @method_decorator(csrf_protect)  # type: ignore[untyped-decorator]
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request, object_id)
        found = app.call(lambda: _read(object_id))
        if found is None:
            raise Http404(f"there is no job {object_id}")
        job, why = found
        result = "" if job.result is None else indented(_REDACTION.content(job.result), SHOWN)
        return self._page(
            request, f"{job.task or 'Job'} {job.id}", "job", job=job, why=why.text, result=result,
            arguments=indented(_REDACTION.content(job.payload), SHOWN) if job.payload else "",
            may_act=self.has_change_permission(request), may_requeue=job.state is JobState.DEAD,
            may_cancel=not job.state.finished,
        )  # fmt: skip

    def _act(self, request: HttpRequest, id: str) -> HttpResponse:
        if not self.has_change_permission(request):
            raise PermissionDenied
        action = request.POST.get("action")
        if action == "cancel":
            acted, done = app.job(id).cancel().acted, "cancelled"
        elif action == "requeue":
            acted, done = app.call(lambda: _requeue(id)), "requeued"
        else:
            raise PermissionDenied
        if acted:
            self.log_change(request, Job(pk=id), done.capitalize())
            messages.success(request, f"Job {id} was {done}.")
        else:
            messages.warning(request, f"Job {id} could not be {done}: its state has changed.")
        return HttpResponseRedirect(request.path)

    def _page(self, request: HttpRequest, title: str, template: str, **context: Any) -> HttpResponse:
        shared = {**self.admin_site.each_context(request), "title": title, "opts": self.opts}
        return TemplateResponse(request, f"dayjob/{template}.html", {**shared, **context})


async def _read(id: str) -> tuple[Record, Explanation] | None:
    return await Inspector(await app.opened(), _REDACTION).job(id)


async def _requeue(id: str) -> bool:
    return await (await app.opened()).requeue(id)
