"""Where a test server is and how to talk to it, with the standard library only: no product code, no driver."""

import base64
import http.client
from contextlib import closing
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from tests.rig.users import ADMIN, USERS, User

REQUEST_TIMEOUT_SECONDS = 60


class RefusedError(RuntimeError):
    """The server answered with an exception; `code` is ClickHouse's number for it, 0 if it sent none."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Endpoint:
    """A server's address and users.

    Attributes:
        host: name or IPv4 address.
        http_port: of the HTTP interface.
        tcp_port: of the native protocol.
        users: `admin`, `runner`, `reader` and others (see `users.py`). Only the admin of a server that
            CLICKHOUSE_TEST_URL names may have another name than its key.
    """

    def __init__(self, host: str, http_port: int, tcp_port: int, admin: User = ADMIN) -> None:
        self.host = host
        self.http_port = http_port
        self.tcp_port = tcp_port
        self.users = {**USERS, "admin": admin}

    @classmethod
    def from_url(cls, url: str) -> "Endpoint":
        """Read `http://user:password@host:port/?tcp_port=9000`, the form that `http_url` gives."""
        parts = urlsplit(url)
        admin = User(unquote(parts.username or "default"), unquote(parts.password or ""))
        tcp_port = int(parse_qs(parts.query).get("tcp_port", ["9000"])[0])
        return cls(parts.hostname or "localhost", parts.port or 8123, tcp_port, admin)

    @property
    def http_url(self) -> str:
        """The endpoint as a value for CLICKHOUSE_TEST_URL."""
        return f"{self.url(scheme='http')}/?tcp_port={self.tcp_port}"

    def url(self, user: str = "admin", scheme: str = "clickhouse") -> str:
        """Return the URL of the HTTP port, without a path; user and password percent-encoded."""
        login = self.users[user]
        return f"{scheme}://{quote(login.name, '')}:{quote(login.password, '')}@{self.host}:{self.http_port}"

    def execute(self, sql: str, user: str = "admin", **settings: str | int) -> str:
        """Run one statement as a user and return the answer's text (TabSeparated) without its last newline.

        Args:
            sql: the statement.
            user: the user's key in `users`.
            settings: sent along with the statement.

        Raises:
            RefusedError: the server answered with an exception.
            OSError: no answer.
        """
        # wait_end_of_query: without it an exception may follow half of an answer whose status was 200.
        target = "/?" + urlencode({"wait_end_of_query": 1, **settings})
        login = self.users[user]
        credentials = base64.b64encode(f"{login.name}:{login.password}".encode()).decode()
        status, headers, body = self._request("POST", target, sql, {"Authorization": f"Basic {credentials}"})
        if status != http.client.OK:
            raise RefusedError(int(headers.get("X-ClickHouse-Exception-Code", 0)), body)
        return body.removesuffix("\n")

    def version(self) -> str:
        """Return the server's version, such as 26.7.2.1."""
        return self.execute("SELECT version()")

    def answers(self) -> bool:
        """Return whether the HTTP port answers."""
        try:
            return self._request("GET", "/ping")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def create_missing_users(self) -> None:
        """Create the users that cannot log in yet.

        Raises:
            RefusedError: the admin has no right to, or one of that name has another password.
        """
        for key, user in self.users.items():
            if not self._can_log_in(key):
                self._create(user)

    def _can_log_in(self, user: str) -> bool:
        try:
            return self.execute("SELECT 1", user) == "1"
        except RefusedError:
            return False

    def _create(self, user: User) -> None:
        settings = ", ".join(f"{name} = {value}" for name, value in user.settings.items())
        self.execute(
            f"CREATE USER {user.name} IDENTIFIED BY '{user.password}'" + (f" SETTINGS {settings}" if settings else "")
        )
        for grant in user.grants or ():
            self.execute(f"{grant} TO {user.name}")

    def _request(
        self, method: str, target: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        with closing(http.client.HTTPConnection(self.host, self.http_port, REQUEST_TIMEOUT_SECONDS)) as connection:
            connection.request(method, target, body.encode(), headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
