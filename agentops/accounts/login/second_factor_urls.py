"""URLs of the second factor, with the names that allauth looks up. AGENTOPS_SECOND_FACTOR switches them on."""

from __future__ import annotations

from allauth.account.views import reauthenticate
from allauth.mfa.base import views
from allauth.mfa.recovery_codes.views import generate_recovery_codes, view_recovery_codes
from allauth.mfa.totp.views import activate_totp, deactivate_totp
from django.urls import path

from agentops.accounts.login import second_factor  # noqa: F401 - connects the receivers that write audit entries

urlpatterns = [
    path("login/second-factor", views.authenticate, name="mfa_authenticate"),
    path("account/confirm", reauthenticate, name="account_reauthenticate"),
    path("account/second-factor", views.index, name="mfa_index"),
    path("account/second-factor/add", activate_totp, name="mfa_activate_totp"),
    path("account/second-factor/remove", deactivate_totp, name="mfa_deactivate_totp"),
    path("account/second-factor/recovery-codes", view_recovery_codes, name="mfa_view_recovery_codes"),
    path("account/second-factor/recovery-codes/replace", generate_recovery_codes, name="mfa_generate_recovery_codes"),
]
