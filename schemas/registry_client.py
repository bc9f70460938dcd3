"""The client of the schema registry (Confluent API), and the only module of this package that uses
the network.

A subject without a compatibility level gets `BACKWARD` before its first version, and levels that
others have set are preserved (compatibility_levels.py). The same schema is registered only once. A
change that readers could not follow is refused here even where the registry would accept it. No
version is registered if the registry has lost the newest schema that records name
(used_schemas.py).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from schemas.classify_registry_answers import NOT_FOUND, Refused, error_of, is_page, no_registry
from schemas.compatibility import TypeChange, added_columns, incompatible_columns
from schemas.compatibility_levels import CompatibilityLevels, LevelChange
from schemas.errors import (
    IncompatibleSchema,
    RegistryDenied,
    RegistryRefused,
    RegistryUnavailable,
    RegistryUnwilling,
    SchemaError,
)
from schemas.schema_metadata import recorded_oid
from schemas.used_schemas import UsedSchema, UsedSchemas, full_name, lost_schema

Schema = dict[str, Any]
OnIncompatible = Literal["stop", "register"]

_READ_AT_ONCE: Final = 8
"""Subjects that are read concurrently."""
_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses before a request is repeated if the registry limits the rate of requests, for a minute in
all. None is longer than the timeout of a request."""
_LOOKS: Final = 3
"""How often a schema that is missing is looked up again, with these pauses."""
_TOO_MANY_REQUESTS: Final = 429
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_BROKEN: Final = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
"""Errors of a connection that the server may have closed while the connection was idle. All
requests may safely be repeated."""
_HINT_UNREACHABLE: Final = (
    "check that registry.url is correct, the registry is running, and no firewall blocks the port"
)
_HINT_NO_HTTP: Final = (
    "the response is not HTTP. If this happens each time, the port in registry.url belongs to another service, such as Kafka or "
    "PostgreSQL"
)
_HINT_PROXY: Final = (
    "the environment sets a proxy (HTTP_PROXY, HTTPS_PROXY or ALL_PROXY): if the registry can be reached without it, add its "
    "host to NO_PROXY"
)
_HINT_INCOMPATIBLE: Final = (
    "to accept all such changes, set schemas.on_incompatible=register, and restart the gateway. "
    "To accept only this one, set the compatibility of subject {subject} to NONE, register the rejected schema (see the log), "
    "{back}, and restart the gateway. Consumers must be able to read both types. "
    "Changing the column back does not help: rows of the new type are already in the stream"
)
_BACK: Final = "set the compatibility back to {}"
_BACK_TO_DEFAULT: Final = "delete this setting of the subject again"
_HINT_FORMER_NAME: Final = (
    "a table without a schema under its present name is compared with its former names, for the rules of [[columns]]. One of "
    "these may have this subject: allow the gateway's user to read it"
)
_HINT_CERTIFICATES: Final = (
    "check registry.ca_file, and registry.cert_file if the registry requires a client certificate"
)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for an answer that is not TLS: before version 3.2, and since that version."""
_HINT_NO_TLS: Final = (
    "the server does not use TLS on this port: in registry.url, use http:// instead of https://, or the port with TLS"
)


class BearerTokens(Protocol):
    """Supply tokens for the login; its errors are propagated by the client."""

    async def token(self) -> str: ...

    def forget(self) -> None:
        """Discard the current token, which the registry has refused."""


class RegistryClient:
    """A client of the schema registry. Its methods raise RegistryUnavailable (try again),
    RegistryRefused and its subclasses, RegistryLostSchemas (at a registration), and
    IncompatibleSchema. Times are in seconds."""

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        tls: ssl.SSLContext | None = None,
        tokens: BearerTokens | None = None,
        timeout_s: float = 30.0,
        on_incompatible: OnIncompatible = "stop",
        on_level_change: Callable[[LevelChange], None] = lambda _: None,
    ) -> None:
        """Call `on_level_change` for each change of a compatibility level, except for the level
        that a new subject gets."""
        address = _address(url)
        try:
            if tls is None and address.scheme == "https":
                tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise RegistryRefused(
                f"registry.ca_file cannot be used: {ca_file}: {error.strerror or type(error).__name__}"
            ) from error
        self._place = str(address).rstrip("/")
        proxy = _proxy_of(address)
        self._via = f" through the proxy {proxy}" if proxy else ""
        self._http = httpx2.AsyncClient(
            base_url=address,
            auth=None if username is None else (username, password or ""),
            verify=tls or False,  # without TLS there is nothing to verify: skips loading the certificates
            timeout=None,  # httpx's timeout is for each step, not for the request
            headers={"Accept": f"{_JSON}, application/json"},
        )
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._pauses_s = [each for each in _PAUSES_S if each <= timeout_s]
        self._on_incompatible = on_incompatible
        self._levels = CompatibilityLevels(self._ask, self._find, self._put_settings, on_level_change)
        self.used = UsedSchemas()
        self._ids: dict[tuple[str, bytes], int] = {}
        self._schemas: dict[int, Schema] = {}
        self._relation_oids: dict[str, int | None] = {}
        self._finding = asyncio.Lock()

    async def close(self) -> None:
        await self._http.aclose()

    async def register(
        self, subject: str, schema: Schema, in_force: Schema | None = None, *, regardless: bool = False
    ) -> int:
        """Return the id of this schema under the subject, registering the schema if necessary. Ids
        are cached by content.

        The schema must be able to read data written with `in_force` (or, if that is None, the
        newest version), unless `regardless` is true.
        """
        text = _text(schema)
        key = subject, sha256(text.encode()).digest()  # a text has several kB, and each relation oid its own
        schema_id = self._ids.get(key)
        if schema_id is None:
            regardless = regardless or self._on_incompatible == "register"
            schema_id = await self._register(subject, schema, text, in_force, regardless)
            self.used.add(UsedSchema(schema_id, subject, full_name(schema)))
            self._ids[key] = schema_id
            self._relation_oids[subject] = recorded_oid(schema)
        return schema_id

    async def check_used(self) -> None:
        """Raise RegistryLostSchemas if the registry no longer has the newest schema of `used`. One
        that is missing is looked up again for a while: another node of the registry may have it
        first."""
        newest = self.used.newest
        if newest is None:
            return
        path = f"/schemas/ids/{newest.id}"
        found = await self._find("GET", path)
        for pause_s in self._pauses_s[:_LOOKS]:
            if found is not None:
                break
            await asyncio.sleep(pause_s)
            found = await self._find("GET", path)
        if found is None:
            raise lost_schema(newest.id, newest.name, "it does not have this id")
        name = full_name(_schema(found)) if found.get("schemaType", "AVRO") == "AVRO" else ""
        if name != newest.name:
            raise lost_schema(newest.id, newest.name, f"that id now has {name or 'the schema of another application'}")

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema as the registry has it: possibly normalized, but with every
        attribute."""
        known = self._schemas.get(schema_id)
        if known is None:
            known = _schema(await self._ask("GET", f"/schemas/ids/{schema_id}"))
            self._schemas[schema_id] = known
        return known

    async def mode(self) -> str:
        """Return the registry's mode, such as READWRITE or READONLY; "" if it tells none."""
        with suppress(SchemaError):
            return str((await self._ask("GET", "/mode")).get("mode", ""))
        return ""

    async def latest(self, subject: str) -> Schema | None:
        """Return the newest version of a subject, or None if there is none. The result is not
        cached."""
        newest = await self._newest(subject)
        return None if newest is None else _schema(newest)

    async def newest(self, subject: str) -> tuple[int, Schema] | None:
        """Return the id and the schema of the newest version; None if the subject does not
        exist."""
        found = await self._newest(subject)
        return None if found is None else (_number(found, "id"), _schema(found))

    async def id_of(self, subject: str, schema: Schema) -> int | None:
        """Return the id of this schema under the subject without registering it; None if no version
        has it."""
        known = await self._find("POST", f"/subjects/{_quoted(subject)}", {"schema": _text(schema)})
        return None if known is None else _number(known, "id")

    async def versions(self, subject: str) -> AsyncIterator[Schema]:
        """Yield the schemas of a subject, the newest first."""
        newest = await self._newest(subject)
        if newest is not None:
            yield _schema(newest)
            async for earlier in self._earlier(subject, newest):
                yield earlier

    async def _earlier(self, subject: str, version: Schema) -> AsyncIterator[Schema]:
        """Yield the schemas of the versions before this one, the newest first."""
        for number in range(_number(version, "version") - 1, 0, -1):
            found = await self._find("GET", f"/subjects/{_quoted(subject)}/versions/{number}")
            if found is not None:  # versions may have been deleted
                yield _schema(found)

    async def find_relation(
        self,
        relation_oid: int,
        subjects: Sequence[str],
        is_of_other: Callable[[str, Schema], bool],
        others: Collection[str] = (),
    ) -> Schema | None:
        """Return the newest schema of the relation with this oid, which may have had other names;
        None if no subject has one. Each subject is read once, however many relations are sought:
        what changes later, this client has registered. Schemas of other applications, and of other
        gateways (`is_of_other`, by subject and schema), are passed over, and those subjects of
        `others` which the registry does not let this user read."""
        async with self._finding:
            unknown = [subject for subject in subjects if subject not in self._relation_oids]
            for start in range(0, len(unknown), _READ_AT_ONCE):
                some = unknown[start : start + _READ_AT_ONCE]
                for subject, read in zip(some, await self._records(some, others), strict=True):
                    oid = None if read is None or is_of_other(subject, read[1]) else recorded_oid(read[1])
                    self._relation_oids.setdefault(subject, oid)
        known = [subject for subject in subjects if self._relation_oids[subject] == relation_oid]
        found = [each for each in await self._records(known, others) if each and recorded_oid(each[1]) == relation_oid]
        return max(found, key=itemgetter(0))[1] if found else None

    async def _records(self, subjects: Sequence[str], others: Collection[str]) -> list[tuple[int, Schema] | None]:
        """Read subjects concurrently; all requests have ended when this returns or raises."""
        asked = [self._record(subject, may_be_denied=subject in others) for subject in subjects]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def _record(self, subject: str, *, may_be_denied: bool) -> tuple[int, Schema] | None:
        """Return the id and the schema of the newest version if it is an Avro record."""
        try:
            found = await self._newest(subject)
        except RegistryDenied as error:
            if may_be_denied:
                return None
            raise RegistryDenied(error.message, hint=f"{_HINT_FORMER_NAME}. Otherwise, {error.hint}") from error
        if found is None or found.get("schemaType", "AVRO") != "AVRO":
            return None
        schema: object = _schema(found)
        return (_number(found, "id"), schema) if isinstance(schema, dict) else None

    async def _register(
        self, subject: str, schema: Schema, text: str, in_force: Schema | None, regardless: bool
    ) -> int:
        """Return the id of a schema. This takes one request if the newest version has this content,
        and four for a new subject."""
        newest = await self._newest(subject)
        body = {"schema": text}
        if newest is None:
            # The subject may have been deleted, but not what consumers have read.
            changes = [] if in_force is None or regardless else incompatible_columns(in_force, schema)
            if changes:
                raise _incompatible(subject, schema, text, changes, "", None)
            await self._levels.begin(subject)
            return await self._new_version(subject, body)
        newest_schema = _schema(newest)
        if newest_schema != schema or regardless:
            await self._levels.repair(subject)
        if newest_schema == schema:
            return _number(newest, "id")
        known = await self.id_of(subject, schema)
        if known is not None:  # even an older version that the newest cannot read: rows may be sent again
            return known
        changes = await self._changes(subject, in_force, newest, schema)
        # The newest version may belong to a transaction that was rolled back: a schema that is
        # compatible with the version in force is then accepted, even if it is not compatible with
        # the newest.
        goes_on = regardless or (not changes and incompatible_columns(newest_schema, schema))
        if changes and not goes_on:
            raise _incompatible(subject, schema, text, changes, "", await self._levels.of(subject))
        try:
            return await self._new_version(subject, body)
        except Refused as error:
            if error.code != 409:
                raise
            if not goes_on:
                level = await self._levels.of(subject)
                raise _incompatible(subject, schema, text, changes, error.message, level) from error
        async with self._levels.off(subject):
            return await self._new_version(subject, body)

    async def _changes(self, subject: str, in_force: Schema | None, newest: Schema, schema: Schema) -> list[TypeChange]:
        """Return the changes that readers cannot follow: compared with the version in force and,
        for columns that this version lacks, with earlier versions of the same table. `BACKWARD`
        compares with one version only. A key is not compared with earlier versions: its columns are
        also in the value's schema, which names its table."""
        compared = in_force or _schema(newest)
        changes = incompatible_columns(compared, schema)
        added = added_columns(compared, schema)
        if not added or schema["name"] == "Key":
            return changes
        path = f"/subjects/{_quoted(subject)}"
        if in_force is not None:  # newer versions belong to transactions that were rolled back
            newest = await self._find("POST", path, {"schema": _text(in_force)}) or newest
        async for earlier in self._earlier(subject, newest):
            if len({recorded_oid(earlier), recorded_oid(schema)} - {None}) > 1:
                break  # a table that had the same name and was dropped
            changes += incompatible_columns(earlier, schema, added)
            added = added_columns(earlier, schema) & added
            if not added:
                break
        return changes

    async def _new_version(self, subject: str, body: Schema) -> int:
        await self.check_used()
        return _number(await self._ask("POST", f"/subjects/{_quoted(subject)}/versions", body), "id")

    async def _newest(self, subject: str) -> Schema | None:
        """Return the id, version and schema of the newest version; None if the subject does not
        exist."""
        return await self._find("GET", f"/subjects/{_quoted(subject)}/versions/latest")

    async def _put_settings(self, subject: str, body: Schema) -> None:
        path = f"/config/{_quoted(subject)}"
        try:
            await self._ask("PUT", path, body)
        except RegistryUnwilling as error:
            if error.status != 409:
                raise
            await self._ask("PUT", path, body)  # Apicurio: another client has just set it for the first time

    async def _find(self, method: str, path: str, body: Schema | None = None) -> Schema | None:
        """Send a request; return None if the registry reports that the object does not exist."""
        try:
            return await self._ask(method, path, body)
        except Refused as error:
            if error.code in NOT_FOUND:
                return None
            raise

    async def _ask(self, method: str, path: str, body: Schema | None = None) -> Schema:
        """Return the JSON object of the response. Raises RegistryUnavailable and
        RegistryRefused."""
        what = f"{method} {self._place}{path}{self._via}"
        content = None if body is None else json.dumps(body).encode()
        answer = await self._answer(method, path, content, what)
        if (
            answer.status_code == 401 and self._tokens is not None
        ):  # the token expired early, or its signing key was replaced
            self._tokens.forget()
            answer = await self._answer(method, path, content, what)
        status = answer.status_code
        if status == 200:
            try:
                found = json.loads(answer.content)
            except (ValueError, RecursionError) as error:
                raise no_registry(what, "an HTML page" if is_page(answer.content) else error) from error
            if not isinstance(found, dict):
                raise no_registry(what, "not an object")
            return found
        raise error_of(status, answer.content, what, urlsplit(answer.headers.get("Location", "")).hostname or "")

    async def _answer(self, method: str, path: str, content: bytes | None, what: str) -> httpx2.Response:
        """Send a request, and repeat it while the registry limits the rate of requests. A session
        that began again would repeat all requests, so the rate is waited for here."""
        for pause_s in self._pauses_s:
            answer = await self._send(method, path, content, what)
            if answer.status_code != _TOO_MANY_REQUESTS:
                return answer
            told = answer.headers.get("Retry-After", "")  # seconds, or a date
            await asyncio.sleep(max(pause_s, min(float(told), self._timeout_s) if told.isdecimal() else 0.0))
        return await self._send(method, path, content, what)

    async def _send(self, method: str, path: str, content: bytes | None, what: str) -> httpx2.Response:
        headers = {"Content-Type": _JSON}
        if self._tokens is not None:
            headers["Authorization"] = f"Bearer {await self._tokens.token()}"
        request = self._http.build_request(method, path, content=content, headers=headers)
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    return await self._http.send(request)
                except _BROKEN:
                    return await self._http.send(request)
        except (httpx2.RequestError, TimeoutError) as error:
            hint = _tls_hint(str(error).upper())
            if hint:
                raise RegistryDenied(
                    f"the TLS handshake with the schema registry failed ({what}): {error}", hint=hint
                ) from error
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            hint = f"{_HINT_PROXY}; otherwise, {_HINT_UNREACHABLE}" if self._via else _HINT_UNREACHABLE
            if isinstance(error, httpx2.RemoteProtocolError):
                hint = _HINT_NO_HTTP
            raise RegistryUnavailable(f"the schema registry does not answer ({what}): {reason}", hint=hint) from error


def _tls_hint(said: str) -> str:
    """Return a hint for a failed TLS handshake; "" for other errors."""
    if "CERTIFICATE" in said:  # the server's, which is not trusted, or a missing client certificate
        return _HINT_CERTIFICATES
    return _HINT_NO_TLS if any(word in said for word in _NO_TLS) else ""


def _proxy_of(address: httpx2.URL) -> str:
    """Return host and port of the proxy that the environment sets for this address; "" if there is
    none."""
    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all", "")
    if not proxy or proxy_bypass(address.host):
        return ""
    return urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def _address(url: str) -> httpx2.URL:
    """Parse the URL, without quoting it in errors: it may contain a password."""
    try:
        address = httpx2.URL(url)
        if address.scheme in ("http", "https") and address.host:
            return address
    except (ValueError, httpx2.InvalidURL):
        pass
    raise RegistryRefused(
        "registry.url is not an http or https URL",
        hint="expected http://host:port/path; user and password belong in registry.username and registry.password",
    )


def _text(schema: Schema) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _number(found: Schema, name: str) -> int:
    try:
        return int(found[name])
    except (KeyError, TypeError, ValueError) as error:
        raise no_registry(f"an answer without {name}", error) from error


def _schema(found: Schema) -> Schema:
    try:
        schema: Schema = json.loads(found["schema"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise no_registry("an answer without a schema", error) from error
    return schema


def _incompatible(
    subject: str, schema: Schema, text: str, changes: list[TypeChange], answer: str, level: str | None
) -> IncompatibleSchema:
    described = schema.get("pg.relation")
    relation = f"{described['schema']}.{described['name']}" if described else subject
    columns = "; ".join(f"column {each.column} changed from {each.old_type} to {each.new_type}" for each in changes)
    return IncompatibleSchema(
        f"{relation}: the new schema is incompatible with an earlier one of subject {subject}: with it, consumers could not "
        f"read old events: {columns or answer}",
        hint=_HINT_INCOMPATIBLE.format(subject=subject, back=_BACK.format(level) if level else _BACK_TO_DEFAULT),
        subject=subject,
        schema_text=text,
    )
