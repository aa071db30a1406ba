"""URLs of the settings pages: /account, /projects, /invitations/{token}, and /p/{project}/settings/…"""

from __future__ import annotations

from django.urls import path

from agentops.accounts.settings_pages import account_pages, audit_page, invitation_page, key_pages, member_pages

urlpatterns = [
    path("account", account_pages.index, name="account"),
    path("account/sessions/end", account_pages.end_other_sessions, name="end-other-sessions"),
    path("account/address", account_pages.change_address, name="address"),
    path("account/address/send", account_pages.send_address_link, name="send-address-link"),
    path("account/address/verify/<str:token>", account_pages.verify_address, name="verify-address"),
    path("projects", member_pages.projects, name="projects"),
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
