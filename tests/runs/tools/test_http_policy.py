"""URLs and addresses that the HTTP client accepts, and the reasons for refusing others, without DNS.

May import runs.tools.
"""

from __future__ import annotations

import ipaddress

import pytest

from agentops.base.http.address_policy import HttpPolicy, OwnSite, UrlNotAllowed, check_addresses, check_url
from agentops.base.http.guarded_client import locate

PUBLIC = "93.184.216.34"
ANY_HOST = HttpPolicy()
OPEN = HttpPolicy(allow_http=True, allow_private=True, extra_ports=(8000,), own_sites=())

# Results of the real resolver for these names; a query for any other name fails the test.
NAMES = {
    "example.com": [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946"],
    "localhost": ["127.0.0.1", "::1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "mixed.example.com": [PUBLIC, "10.0.0.1"],
    "zone.example.com": ["fe80::1%eth0"],
    "nat64.example.com": ["64:ff9b::7f00:1"],
    "empty.example.com": [],
}


def located(url: str, policy: HttpPolicy = ANY_HOST):
    return locate(url, policy, resolver=NAMES.__getitem__)


def addresses(*texts: str):
    return [ipaddress.ip_address(text) for text in texts]


@pytest.mark.parametrize(
    "url",
    [
        # every way to write a loopback address, and addresses that only look public
        "https://127.0.0.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://127.0.0.01/",
        "https://0x7f.0.0.1/",
        "https://127.0.0.0x1/",
        "https://0/",
        "https://1.2.3.4.5/",
        "https://example.0x10/",
        "https://256.256.256.256/",
        "https://00000177.1/",
        "https://①②⑦.⓪.⓪.①/",
        "https://１２７.０.０.１/",
        "https://127。0。0。1/",
        "https://ⓔxample.com/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:93.184.216.34]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2001:0:1::1]/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::7f00:1]/",
        "https://[fe80::1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fec0::1]/",
        "https://[fc00::1]/",
        "https://[fd00:ec2::254]/",
        "https://[ff02::1]/",
        "https://[not-an-address]/",
        "https://169.254.169.254/",
        "https://192.0.0.192/",
        "https://100.64.0.1/",
        "https://100.100.100.200/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://0.0.0.0/",
        "https://168.63.129.16/",
        "https://10.0.0.1/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://198.18.0.1/",
        # names that resolve to private addresses
        "https://localhost/",
        "https://localhost./",
        "https://LOCALHOST/",
        "https://127.0.0.1.nip.io/",
        "https://mixed.example.com/",
        "https://zone.example.com/",
        "https://nat64.example.com/",
        "https://empty.example.com/",
        # more than a host
        "https://user:pass@example.com/",
        "https://user@example.com/",
        "https://a@b@example.com/",
        "https://example.com:x@example.com/",
        "https://example.com:22/",
        "https://example.com:6379/",
        "https://example.com:80/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:-1/",
        # other schemes, or no scheme
        "http://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "ftp://example.com/",
        "ws://example.com/",
        "data:text/plain,x",
        "javascript:alert(1)",
        "//example.com/",
        "example.com",
        "",
        "https:",
        "https://",
        "https:///path",
        "https:example.com",
        # URLs that parsers interpret differently
        "https://exam\tple.com/",
        "https://example.com/\n",
        " https://example.com/",
        "https://example.com/a b",
        "https://example.com\\@evil.example/",
        "https://example.com\0/",
        "https://example.com/\x7f",
        "https://exa%6dple.com/",
        "https://example.com%2f@evil.example/",
        "https://example..com/",
        "https://.example.com/",
        "https://-example.com/",
        "https://exam ple.com/",
        "https://exam*ple.com/",
        "https://" + "a" * 64 + ".com/",
        "https://" + "a." * 130 + "com/",
        "https://example.com/" + "x" * 8192,
        "https://example.com/\ud800",
    ],
    ids=lambda url: url[:40].encode("unicode_escape").decode(),
)
def test_a_url_outside_the_policy_is_refused(url):
    with pytest.raises(UrlNotAllowed) as caught:
        located(url)

    assert caught.value.code == "url_not_allowed"
    assert 0 < len(caught.value.reason) < 500


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://example.com", "example.com", b"/"),
        ("https://EXAMPLE.com./a/../b?q=ä#part", "example.com", b"/b?q=%C3%A4"),
        ("https://example.com:443/x", "example.com", b"/x"),
        (f"https://{PUBLIC}/", PUBLIC, b"/"),
        ("https://[2606:2800:220:1:248:1893:25C8:1946]/", "2606:2800:220:1:248:1893:25c8:1946", b"/"),
    ],
)
def test_public_https_urls_are_allowed(url, host, path):
    target, found = located(url)

    assert (target.scheme, target.host, target.port, target.path) == ("https", host, 443, path)
    assert found == addresses(*NAMES.get(host, [host]))


def test_an_international_name_is_checked_in_ascii_form():
    policy = HttpPolicy(allowed_hosts=["xn--bcher-kva.example"])

    assert check_url("https://Bücher.example/", policy).host == "xn--bcher-kva.example"


def test_host_header_names_the_host_as_written_without_the_default_port():
    assert check_url("https://example.com/", OPEN).host_header == b"example.com"
    assert check_url("http://example.com:8000/", OPEN).host_header == b"example.com:8000"
    assert check_url("http://[::1]:8000/", OPEN).host_header == b"[::1]:8000"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("api.example.com", True),
        ("API.Example.COM.", True),
        ("a.wild.example", True),
        ("a.b.wild.example", True),
        ("wild.example", False),
        ("notwild.example", False),
        ("example.com", False),
        ("api.example.com.evil.net", False),
        ("xapi.example.com", False),
    ],
)
def test_the_allow_list_matches_names_and_subdomains_of_a_wildcard(host, allowed):
    policy = HttpPolicy(allowed_hosts=["api.example.com", "*.Wild.example."])

    if allowed:
        assert check_url(f"https://{host}/", policy).host == host.lower().removesuffix(".")
    else:
        with pytest.raises(UrlNotAllowed, match="not on the list of allowed hosts"):
            check_url(f"https://{host}/", policy)


def test_an_empty_allow_list_allows_nothing():
    with pytest.raises(UrlNotAllowed, match="not on the list of allowed hosts"):
        check_url("https://example.com/", HttpPolicy(allowed_hosts=[]))


def test_the_installation_s_own_names_are_refused():
    own = [OwnSite("app.example.com", frozenset({443, 8443})), OwnSite(".wild.example", frozenset({443}))]
    policy = HttpPolicy(own_sites=own, extra_ports=[8443, 9443])
    for url in (
        "https://app.example.com/",
        "https://APP.example.com.:443/x",
        "https://app.example.com:8443/",
        "https://wild.example/",
        "https://a.b.wild.example/",
    ):
        with pytest.raises(UrlNotAllowed, match="is this site itself"):
            check_url(url, policy)
    for url in ("https://app.example.com:9443/", "https://xapp.example.com/", "https://notwild.example/"):
        check_url(url, policy)


def test_private_addresses_require_a_policy_and_metadata_addresses_are_always_refused():
    check_addresses(addresses("127.0.0.1", "10.1.1.1", "::1", "fc00::1", PUBLIC), OPEN)
    assert located("http://localhost:8000/", OPEN)[1] == addresses("127.0.0.1", "::1")

    for shut in (
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "0.0.0.0",
        "224.0.0.1",
        "fd00:ec2::254",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "::",
        "::2",
    ):
        with pytest.raises(UrlNotAllowed, match="is not public"):
            check_addresses(addresses(shut), OPEN)


def test_a_name_with_one_private_address_is_refused():
    with pytest.raises(UrlNotAllowed, match=r"10\.0\.0\.1"):
        check_addresses(addresses(PUBLIC, "10.0.0.1"), ANY_HOST)
