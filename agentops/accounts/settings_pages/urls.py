"""URLs of the settings pages: /account, /projects, /invitations/{token}, and /p/{project}/settings/…"""

from __future__ import annotations

from django.urls import path

from agentops.accounts.settings_pages import (
    account_pages,
    address_pages,
    audit_page,
    invitation_page,
    key_pages,
    member_pages,
    project_pages,
)

urlpatterns = [
    path("account", account_pages.index, name="account"),
    path("account/sessions/end", account_pages.end_other_sessions, name="end-other-sessions"),
    path("account/address", address_pages.change, name="address"),
    path("account/address/send", address_pages.send, name="send-address-link"),
    path("account/address/verify/<str:token>", address_pages.verify, name="verify-address"),
    path("projects", project_pages.index, name="projects"),
    path("invitations/<str:token>", invitation_page.index, name="invitation"),
    # /p/{project}/settings/members
    path("p/<slug:project>/settings/members", member_pages.index, name="members"),
    path("p/<slug:project>/settings/members/add", member_pages.add, name="members-add"),
    path("p/<slug:project>/settings/members/role", member_pages.change_role, name="members-role"),
    path("p/<slug:project>/settings/members/remove", member_pages.remove, name="members-remove"),
    path("p/<slug:project>/settings/invitations/withdraw", member_pages.withdraw, name="invitations-withdraw"),
    # /p/{project}/settings/keys
    path("p/<slug:project>/settings/keys", key_pages.index, name="api-keys"),
    path("p/<slug:project>/settings/keys/create", key_pages.create, name="api-keys-create"),
    path("p/<slug:project>/settings/keys/<uuid:key_id>", key_pages.detail, name="api-key"),
    path("p/<slug:project>/settings/keys/<uuid:key_id>/rotate", key_pages.rotate, name="api-key-rotate"),
    path("p/<slug:project>/settings/keys/<uuid:key_id>/revoke", key_pages.revoke, name="api-key-revoke"),
    # /p/{project}/settings/audit
    path("p/<slug:project>/settings/audit", audit_page.index, name="audit-log"),
    path("p/<slug:project>/settings/audit.csv", audit_page.download, name="audit-log-csv"),
]
