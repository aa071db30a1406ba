"""`/api/projects`: the projects that the caller may see."""

from __future__ import annotations

from django.db.models import QuerySet

from agentops.projects.access import projects_for
from agentops.projects.models import Project
from runs.api.answers import ProjectRow
from runs.api.base_views import ListView


class Projects(ListView):
    """List the projects that the caller may see, oldest first."""

    serializer_class = ProjectRow

    def get_queryset(self) -> QuerySet[Project]:
        return projects_for(self.principal).order_by("pk")
