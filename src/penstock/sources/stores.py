"""Object stores as obstore makes them: from a URL and the settings of the process that asks. Only the fetch service uses this.

Rule 1: a store belongs to a bucket, the settings, and a time limit. obstore has one time limit per store, so that of a read is rounded up to a
        power of two.
Rule 2: obstore never retries (`penstock.sources.fetch`, rule 2).
Rule 3: no secret is in a message. Of a store's answer its status, code and message are told; of a URL, no query.
"""

from __future__ import annotations

import configparser
import math
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.sources.fetch_frames import FetchTrouble, settings_in

CONNECT_S = 10
PLAIN = "http://"
NO_PROFILE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
"""With one of them the environment says who we are."""
KEYS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
ASKED_ELSEWHERE = {"credential_process", "credential_source", "role_arn", "sso_session", "sso_start_url"}
METADATA = ("169.254.169.254", "/latest/api/token", "metadata.google.internal", "/computeMetadata/")
"""Of a cloud's own server, which is asked for credentials when the environment has none."""

STATUS = re.compile(r"status code: (\d{3})([^:\n]*)")
XML = re.compile(r"<(?:Code|Message)>([^<]*)</")
QUERY = re.compile(r"\?[^\s\"')]*")


class Unreadable(Exception):
    """An object store did not do what was asked."""

    def __init__(self, trouble: FetchTrouble, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.trouble, self.status = trouble, status


class ObjectStores:
    """The stores under one set of settings. Any thread may ask."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._made: dict[tuple[str, int], Any] = {}
        self._worked: set[int] = set()
        """Stores that gave something: there are credentials."""

    def of(self, name: str, within_s: float) -> tuple[Any, str]:
        """Return the store of a URL, and the key in it."""
        bucket, key = split(name)
        limit_s: int = 1 << (math.ceil(within_s) - 1).bit_length()
        found = self._made.get((bucket, limit_s))
        if found is None:
            with _making:
                found = self._made[bucket, limit_s] = made(bucket, limit_s, self._settings)
        return found, key

    def worked(self, store: Any) -> None:
        self._worked.add(id(store))

    def trouble(self, exc: Exception, name: str) -> Unreadable:
        bucket = split(name)[0]
        used = (id(store) for (its, _), store in self._made.items() if its == bucket)
        return trouble_of(exc, has_worked=not self._worked.isdisjoint(used))


_making = threading.Lock()


def split(name: str) -> tuple[str, str]:
    """Split a URL into bucket and key. A key is taken as it is, "%", "?" and "#" included."""
    kind, _, rest = name.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{kind}://{bucket}", key


def made(bucket: str, limit_s: int, settings: Mapping[str, str]) -> Any:
    from obstore.store import from_url

    said = profile(settings) if bucket.startswith("s3") else {}
    ends = [settings.get(f"AWS_ENDPOINT{name}", "") for name in ("_URL_S3", "_URL", "")]
    plain = bucket.startswith("s3") and any(
        end.startswith(PLAIN) for end in (*ends, said.get("endpoint", ""))
    )
    for key in settings_in(os.environ):  # obstore looks at the environment of its process, now
        del os.environ[key]
    os.environ.update(settings)
    return from_url(
        bucket,
        config=said or None,
        client_options={"timeout": f"{limit_s}s", "connect_timeout": f"{CONNECT_S}s", "allow_http": plain},
        retry_config={"max_retries": 0},
    )


def profile(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what the files of the AWS tools say, where the environment says nothing: obstore does not read them."""
    name = settings.get("AWS_PROFILE") or "default"
    home = Path(settings.get("HOME", "/"), ".aws")
    files = configparser.ConfigParser(interpolation=None), configparser.ConfigParser(interpolation=None)
    files[0].read(settings.get("AWS_CONFIG_FILE") or home / "config")
    files[1].read(settings.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    said: dict[str, str] = {}
    for file, section in zip(files, (name if name == "default" else f"profile {name}", name), strict=True):
        said |= file[section] if file.has_section(section) else {}
    found: dict[str, str] = {}
    if said.get("region") and not settings.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        found["region"] = said["region"]
    if said.get("endpoint_url") and not any(key.startswith("AWS_ENDPOINT") for key in settings):
        found["endpoint"] = said["endpoint_url"]
    if any(settings.get(key) for key in NO_PROFILE):
        return found
    if not said and "AWS_PROFILE" in settings:
        raise Unreadable(
            FetchTrouble.REFUSED, f"AWS_PROFILE is {name!r}, and no file of {home} has such a profile"
        )
    if said.keys() & KEYS:
        return found | {key: said[key] for key in KEYS & said.keys()}
    if unread := sorted(said.keys() & ASKED_ELSEWHERE):
        raise Unreadable(
            FetchTrouble.REFUSED,
            f"profile {name!r} gets its credentials by {', '.join(unread)}, which is not done here: "
            f'eval "$(aws configure export-credentials --format env)" puts them into the environment',
        )
    return found


def trouble_of(exc: Exception, *, has_worked: bool) -> Unreadable:
    """Translate an error of obstore. Its text has lines for developers behind the first."""
    if isinstance(exc, Unreadable):
        return exc
    kind, text = type(exc).__name__, str(exc).partition("\n")[0]
    found = STATUS.search(text)
    status = int(found[1]) if found else 0
    said = " ".join([f"{status}{found[2]}", ": ".join(XML.findall(text))]).strip() if found else text
    said = QUERY.sub("?…", said)[:500]
    if isinstance(exc, FileNotFoundError):
        return Unreadable(FetchTrouble.MISSING, said, status)
    if kind == "PreconditionError":
        return Unreadable(FetchTrouble.CHANGED, "another", status)
    if not has_worked and any(place in text for place in METADATA):
        return Unreadable(
            FetchTrouble.REFUSED,
            f"no credentials were found in the environment, and the cloud's own server gave none ({said}). See docs/data.md",
        )
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return Unreadable(
            FetchTrouble.REFUSED, f"{said}: are the credentials those of this store? See docs/data.md", status
        )
    passes = status in (408, 429) or status >= 500 or (not status and "HTTP error" in text)
    return Unreadable(FetchTrouble.FLEETING if passes else FetchTrouble.REFUSED, said, status)
