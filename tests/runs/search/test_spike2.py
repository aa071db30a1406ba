import pytest
from django.test import Client
from django.contrib.auth.models import User
from runs.upkeep import search_index
from tests.support.factories import drive, make_agent, make_run, make_project
pytestmark = pytest.mark.django_db
def test_it():
    run = drive(make_run())
    list(search_index.catch_up())
    c=Client(); c.force_login(User.objects.create_superuser("boss"))
    slug=run.project.slug
    for q in ("q=go&limit=2","q=Go 1.25&order=newest&limit=2","q=_&tool=Edit&only=errors",'q="','q=',"q="+"a "*11, "q=%25"):
        a=c.get(f"/api/projects/{slug}/search?{q}")
        print(q, a.status_code, a.content.decode()[:1500])
        p=c.get(f"/p/{slug}/search?{q}")
        print(p.status_code, len(p.content))
