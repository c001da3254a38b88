"""What can be wrong with a server, a conninfo or the driver, said in the library's words.

A password is in none of them: a conninfo is shown by `redacted`, and the driver's own words are repeated only where
they cannot quote one.
"""

import re

from ..._errors import DatabaseError

try:
    import psycopg
    from psycopg import adapt, generators, postgres, pq
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types import array
except ImportError as error:
    raise ImportError(
        f"the Postgres engine needs the driver psycopg: pip install 'alkstore-trio[postgres]' ({error})", name="psycopg"
    ) from error

__all__ = ["NotConnected", "check_driver", "failure", "parsed", "redacted", "refusal"]

_OLDEST = (3, 2)  # the first with `cancel_conn`, and with connection attempts to be had apart
_RELIED_ON = (
    (psycopg, ("AsyncConnection", "AsyncCursor", "AsyncRawCursor", "Notify", "RawCursor", "errors")),
    (psycopg.AsyncConnection, ("add_notify_handler", "cancel_safe", "wait")),
    (psycopg.AsyncRawCursor, ("_execute_gen",)),
    (adapt, ("AdaptersMap", "Transformer")),
    (array, ("register_all_arrays",)),
    (adapt.Transformer, ("load_rows", "set_pgresult")),
    (generators, ("execute",)),
    (postgres, ("register_default_adapters", "register_default_types")),
    (psycopg.errors, ("error_from_result",)),
    (
        pq.PGconn,
        (
            "backend_pid",
            "cancel_conn",
            "connect_poll",
            "connect_start",
            "consume_input",
            "finish",
            "flush",
            "nonblocking",
            "notifies",
            "parameter_status",
            "pipeline_status",
            "send_prepare",
            "send_query",
            "send_query_params",
            "send_query_prepared",
            "server_version",
            "socket",
            "status",
            "transaction_status",
        ),
    ),
    (pq.PGresult, ("nparams", "ntuples", "param_type", "status")),
)

_WRONG_LOGIN = "does not let this user in: check the conninfo's user and password, and the server's pg_hba.conf"
_REMEDIES = {
    "28000": _WRONG_LOGIN,
    "28P01": _WRONG_LOGIN,
    "3D000": "does not exist: create it first (createdb), or name another",
    "42501": "does not allow this: grant the role of the store's user what the statement needs",
    "25P03": "ended the session, whose transaction had done nothing for too long (idle_in_transaction_session_timeout)",
    "25P04": "ended the session, whose transaction had taken too long (transaction_timeout)",
    "25006": "only reads, as a standby does: name the primary, or add target_session_attrs=read-write to the conninfo",
    "53100": "has no space left on its disk; the store goes on when there is some",
    "53200": "is out of memory",
    "53300": "has no connection left for this user: raise max_connections, or open fewer",
    "55P03": "holds a lock that this statement did not get in time",
    "57014": "cancelled this statement, at somebody else's request or by its statement_timeout",
    "57P03": "does not take connections yet: it is starting, stopping or recovering",
}
_RETRYABLE = {"26000", "40001", "40P01"}  # 26000: a pooler, or a DISCARD ALL, lost what was prepared
_TRANSIENT = {"25P03", "25P04", "55P03", "57014", "57P01", "57P02", "57P03", "57P04", "57P05"}
_TRANSIENT_CLASSES = {"08", "53"}

# The driver has no code for what ends an attempt to connect, only the server's words.
_WORDS = [
    (re.compile(pattern), sqlstate)
    for pattern, sqlstate in [
        (r"authentication failed|no password supplied|no pg_hba\.conf entry|no such user", "28P01"),
        (r'role ".*" does not exist|role ".*" is not permitted to log in', "28000"),
        (r'database ".*" does not exist|no such database', "3D000"),
        (r"permission denied for database", "42501"),
        (r"too many clients|too many connections|connection slots are reserved|no more connections allowed", "53300"),
        (r"the database system is ", "57P03"),
        (r"session is read-only|not allow connections in read-write|server is in hot standby mode", "25006"),
    ]
]


class NotConnected(psycopg.OperationalError):
    """No connection came about; its text names no password."""


def check_driver() -> None:
    """Refuse a psycopg that is too old, or one that has moved what this engine stands on."""
    version = tuple(int(number) for number in re.findall(r"\d+", psycopg.__version__)[:2])
    missing = [f"{owner.__name__}.{name}" for owner, names in _RELIED_ON for name in names if not hasattr(owner, name)]
    if version < _OLDEST or missing:
        lacks = f" lacks {', '.join(missing)}" if missing else " is too old"
        raise ImportError(
            f"the Postgres engine needs psycopg 3.2 or later, and psycopg {psycopg.__version__}{lacks}: "
            "pip install 'alkstore-trio[postgres]'",
            name="psycopg",
        )


def parsed(conninfo: str) -> dict[str, str]:
    """What a conninfo says, by keyword; a ``psycopg.ProgrammingError`` that quotes nothing of it if it is malformed."""
    params: dict[str, str] = {}
    try:
        params |= {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.Error:
        wrong = "is malformed"
    else:
        wrong = _misread(params, conninfo.startswith(("postgresql:", "postgres:")))
    if wrong:  # libpq's words may quote the password
        raise psycopg.ProgrammingError(
            f"the conninfo {wrong}: write postgresql://user:password@host:port/dbname, with anything but letters and "
            "digits in the password percent-encoded (an '@' as %40), or 'host=... dbname=... user=... password=...'"
        ) from None
    return params


def _misread(params: dict[str, str], is_uri: bool) -> str:
    """How a password with an unescaped '@', ':' or '/' shows in what libpq made of its conninfo."""
    hosts = params.get("host", "").split(",")
    if any("@" in host and host[0] not in "@/" for host in hosts):
        return "has an '@' in its host"
    if not re.fullmatch(r"[0-9, ]*", params.get("port", "")):
        return "has a port that is no number"
    if not re.fullmatch(r"-?[0-9]*\.?[0-9]*", params.get("connect_timeout", "0")):
        return "has a connect_timeout that is no number"
    dbname = params.get("dbname", "")
    if is_uri and "@" in dbname:
        return "has an '@' in its dbname"
    if re.search(r"://|password\s*=", dbname):  # the server would quote it
        return "has another conninfo in its dbname"
    return ""


def redacted(conninfo: str) -> str:
    """Where a conninfo leads, as "host/dbname": what of it may be shown."""
    try:
        params = parsed(conninfo)
    except psycopg.Error:
        return "postgres (malformed conninfo)"
    if not {"host", "hostaddr", "dbname"} & params.keys() and "service" in params:
        return f"service {params['service']}"
    host = params.get("host") or params.get("hostaddr") or "localhost"
    dbname = params.get("dbname") or params.get("user") or ""
    if "://" in dbname or "=" in dbname:  # a conninfo in the place of a name
        dbname = "..."
    return f"{host}/{dbname}" if dbname else host


def failure(error: psycopg.Error, where: str) -> DatabaseError:
    """The library's error for one of the driver's; ``where`` is what `redacted` says."""
    sqlstate, text = error.sqlstate, _said(error)
    if sqlstate is None and isinstance(error, psycopg.OperationalError):
        sqlstate = next((code for pattern, code in _WORDS if pattern.search(text)), None)
        if sqlstate is None:
            if isinstance(error, NotConnected):
                advice = "cannot be reached: is the server running, and does it take connections there?"
                return DatabaseError(f"{where!r} {advice} ({text})", transient=True)
            return DatabaseError(f"{where!r}: the connection was lost ({text})", transient=True)
    code = sqlstate or ""
    remedy = _REMEDIES.get(code)
    return DatabaseError(
        f"{where!r} {remedy} ({text})" if remedy else f"{where!r}: {text}",
        retryable=code in _RETRYABLE,
        transient=code in _TRANSIENT or code[:2] in _TRANSIENT_CLASSES,
    )


def refusal(error: psycopg.Error) -> str:
    """Why a statement was refused for its form: by the driver, or by the server as being several; empty: it was not."""
    if error.sqlstate is None:
        return str(error) if isinstance(error, psycopg.ProgrammingError) else ""
    several = error.sqlstate == "42601" and error.diag.source_function == "exec_parse_message"  # words are translated
    return "it is more than one; run them one at a time" if several else ""


def _said(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or str(error)).split())
