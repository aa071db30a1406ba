"""The login page, which the administration uses too."""

from __future__ import annotations

from typing import Any

from allauth.account.utils import perform_login
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme

from agentops.accounts.errors import RoleRequired
from agentops.accounts.login.forms import LoginForm
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe


class LoginPage(LoginView):
    """The login page: Django's view with throttling. allauth asks for the second factor and logs in."""

    http_method_names = ["get", "head", "post", "options"]
    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Log in, or ask for the second factor first."""
        response: HttpResponse = perform_login(self.request, form.get_user(), redirect_url=self.get_success_url())
        return response

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        """Return the context, with the OpenID provider if there is one."""
        provider = {"name": settings.AGENTOPS_OIDC_NAME, "issuer": settings.AGENTOPS_OIDC_ISSUER}
        return super().get_context_data(openid=provider if provider["issuer"] else None, **context)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Show the form again: status 422, 429 for too many attempts, or 400 for an overlong password."""
        assert isinstance(form, LoginForm)
        status = 400 if form.has_error("password", "max_length") else 429 if form.retry_after_s else 422
        response = self.render_to_response(self.get_context_data(form=form), status=status)
        if form.retry_after_s:
            response.headers["Retry-After"] = str(form.retry_after_s)
        return response


@require_safe
def admin_login(request: HttpRequest) -> HttpResponse:
    """Replace the admin's login page, which has no throttling.

    Raise RoleRequired for a user who is logged in without access to the administration, to avoid a redirect loop.
    """
    principal_of(request)
    if not (request.user.is_active and request.user.is_superuser):
        raise RoleRequired("only superusers may use the administration")
    next_url = request.GET.get("next", "")
    return redirect(next_url if url_has_allowed_host_and_scheme(next_url, {request.get_host()}) else "admin:index")
