"""The XML that a test server of our own is configured by."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tests.rig.users import DEFAULT, USERS, User

# select_from_system_db_requires_grant and its like: on in the configuration that ClickHouse is installed with, off
# in the code's defaults.
CONFIG = """\
<clickhouse>
    <logger>
        <level>information</level>
        <log>{folder}/server.log</log>
    </logger>
    <path>{folder}/data/</path>
    <tmp_path>{folder}/data/tmp/</tmp_path>
    <listen_host>{host}</listen_host>
    <http_port>{http_port}</http_port>
    <tcp_port>{tcp_port}</tcp_port>
    <user_directories><users_xml><path>{folder}/users.xml</path></users_xml></user_directories>
    <access_control_improvements>
        <select_from_system_db_requires_grant>true</select_from_system_db_requires_grant>
        <select_from_information_schema_requires_grant>true</select_from_information_schema_requires_grant>
        <on_cluster_queries_require_cluster_grant>true</on_cluster_queries_require_cluster_grant>
        <settings_constraints_replace_previous>true</settings_constraints_replace_previous>
    </access_control_improvements>
    <zookeeper>{keeper}</zookeeper>
    <keeper_map_path_prefix>/keeper_map_tables</keeper_map_path_prefix>
    <macros><shard>s1</shard><replica>{replica}</replica></macros>
    <remote_servers>{clusters}</remote_servers>
</clickhouse>
"""

USERS_XML = """\
<clickhouse>
    <quotas><default/></quotas>
    <profiles>{profiles}</profiles>
    <users>{users}</users>
</clickhouse>
"""

USER_XML = """
        <{name}>
            <password>{password}</password>
            <profile>{name}</profile>
            <quota>default</quota>
            <networks><ip>::/0</ip></networks>
            {rights}
        </{name}>"""


Clusters = Mapping[str, Sequence[str]]
"""The hosts of each cluster, by its name."""


def write_config(
    folder: Path,
    host: str,
    http_port: int,
    tcp_port: int,
    clusters: Clusters | None = None,
    *,
    zookeeper_port: int | None = None,
    replica: str = "r1",
) -> Path:
    """Write `config.xml` and `users.xml` into the folder, and return the former."""
    known = "".join(cluster_xml(name, hosts, tcp_port) for name, hosts in (clusters or {}).items())
    users = (DEFAULT, *USERS.values())
    config = folder / "config.xml"
    config.write_text(
        CONFIG.format(
            folder=folder,
            host=host,
            http_port=http_port,
            tcp_port=tcp_port,
            clusters=known,
            keeper=keeper_xml(host, zookeeper_port),
            replica=replica,
        )
    )
    (folder / "users.xml").write_text(
        USERS_XML.format(profiles="".join(map(profile_xml, users)), users="".join(map(user_xml, users)))
    )
    return config


def keeper_xml(host: str, port: int | None) -> str:
    """Return where the Keeper is: a ZooKeeper at the port, or, with None, the server's own memory."""
    if port is None:
        return "<implementation>testkeeper</implementation>"
    return f"<node><host>{host}</host><port>{port}</port></node>"


def cluster_xml(name: str, hosts: Sequence[str], port: int) -> str:
    """Return a cluster of one shard, with a replica on each host."""
    replicas = "".join(f"<replica><host>{host}</host><port>{port}</port></replica>" for host in hosts)
    return f"<{name}><shard>{replicas}</shard></{name}>"


def profile_xml(user: User) -> str:
    """Return the profile that carries the user's name and settings."""
    settings = "".join(f"<{name}>{value}</{name}>" for name, value in user.settings.items())
    return f"<{user.name}>{settings}</{user.name}>"


def user_xml(user: User) -> str:
    """Return the user's element; one without grants gets the right to give rights, as ClickHouse's own default user."""
    if user.grants is None:
        rights = "<access_management>1</access_management>"
    else:
        rights = f"<grants>{''.join(f'<query>{grant}</query>' for grant in user.grants)}</grants>"
    return USER_XML.format(name=user.name, password=escape(user.password), rights=rights)
