import time
import pytest
from runs.upkeep import search_index
from runs.models import SearchEntry, SearchPosition
from runs.queries.search_results import *
from runs.queries.search_terms import parse
from runs.queries.json_lists import RowSpan
from tests.support.factories import drive, make_agent, make_run, make_project
pytestmark = pytest.mark.django_db
def test_it():
    run = drive(make_run())
    t=time.time()
    print(list(search_index.catch_up()), time.time()-t)
    for e in SearchEntry.objects.order_by("pk")[:400]:
        print(e.pk,e.kind,e.key,e.seq,e.name,e.status,e.is_error,len(e.text),e.text[:100])
    for o in SearchOrder:
        rows=search(Search(run.project_id, parse('test "_'), order=o), RowSpan(limit=5))
        for r in rows.items: print(r.id, r.kind, r.excerpt)
        print(rows.keys)
    search_index.rebuild(run.pk)
