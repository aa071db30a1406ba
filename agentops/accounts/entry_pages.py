"""The login page."""

from __future__ import annotations

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme

from agentops.accounts.audit import AuditAction, record
from agentops.accounts.errors import RoleRequired
from agentops.accounts.login.form import LoginForm
from agentops.accounts.login.known_browsers import remember_browser
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe


class LoginPage(LoginView):
    """The login page: Django's view with throttling and audit entries."""

    http_method_names = ["get", "head", "post", "options"]
    template_name = "login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Log in, write an audit entry and remember the browser."""
        response = super().form_valid(form)
        record(principal_of(self.request), AuditAction.LOGIN, project=None, obj=form.get_user())
        remember_browser(response, form.cleaned_data["username"].casefold())
        return response

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
