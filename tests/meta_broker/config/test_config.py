"""The configuration: what is accepted, and one line with a remedy for all that is not."""

import zlib
from pathlib import Path

import pytest

from journal.wal.flush_mode import FlushMode
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.loading import load
from meta_broker.config.sections import SlaveSection, ZooKeeperSection
from meta_broker.errors import ConfigError


def load_text(directory: Path, text: str | bytes, **options: object) -> BrokerConfig:
    path = directory / "broker.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    arguments = {"data": directory / "data", "broker_id": 0, "port": 0} | options
    return load(path, **arguments)  # type: ignore[arg-type]  # one place for every option a test may vary


def refusal(directory: Path, text: str | bytes, **options: object) -> str:
    """The error's line without the file's name; it must be one printable line."""
    with pytest.raises(ConfigError) as caught:
        load_text(directory, text, **options)
    line = str(caught.value)
    assert line.isprintable(), line
    return line.removeprefix(f"{directory}/broker.toml: ")


ANY_TOPIC = "\n[topics.'*']\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[broker", "not TOML: "),
        ("broker = ", "not TOML: "),
        (b"\xff\xfe", "not TOML: "),
        ("a = " + "[" * 20_000, "not TOML: "),
        ("a = " + "1" * 5_000, "not TOML: "),
        ("[brokr]", "unknown key brokr: did you mean 'broker'?"),
        ("[broker]\nsegment_byte = 1", "unknown key broker.segment_byte: did you mean 'segment_bytes'?"),
        (
            "[zookeeper]\nsession_timeout = 1",
            "unknown key zookeeper.session_timeout: did you mean 'session_timeout_ms'?",
        ),
        ("[topics.orders]\npartition = 1", "unknown key topics.orders.partition: did you mean 'partitions'?"),
        ("xyzzy = 1", "unknown key xyzzy: known are broker, zookeeper, retention, replication, topics"),
        ('"a\\nb" = 1', "unknown key 'a\\nb': known are broker, zookeeper, retention, replication, topics"),
        ('[topics.t]\n"\\u001b" = 1', "unknown key 'topics.t.\\x1b': known are"),
        ("[slave]\nmastr = 1", "unknown key slave.mastr: did you mean 'master'?"),
        ("[slave]\nid = -1" + ANY_TOPIC, "slave: id -1: a slave id is a number from 0 to 999999999"),
        ("[slave]\nmaster = 'here'" + ANY_TOPIC, "slave: master 'here' is no HOST:PORT"),
        ("[slave]\nmaster = 'here:0'" + ANY_TOPIC, "slave: master 'here:0' is no HOST:PORT"),
        ("[slave]\nmaster = 'here:99999'" + ANY_TOPIC, "slave: master 'here:99999' is no HOST:PORT"),
        ("broker = 1", "broker: expected `object`, got `int`"),
        ("topics = []", "topics: expected `object`, got `array`"),
        ("[topics]\norders = 3", "topics[...]: expected `object`, got `int`"),
        ("[broker]\nsegment_bytes = '1'", "broker.segment_bytes: expected `int`, got `str`"),
        ("[broker]\nsegment_bytes = true", "broker.segment_bytes: expected `int`, got `bool`"),
        ("[broker]\nqueued_bytes_max = 1.5", "broker.queued_bytes_max: expected `int`, got `float`"),
        ("[broker]\ntell_end_offset = 1", "broker.tell_end_offset: expected `bool`, got `int`"),
        ("[broker]\nhost = 1", "broker.host: expected `str`, got `int`"),
        ("[broker]\nsegment_bytes = 4097", "broker.segment_bytes is 4097: use a multiple of 4096 from 4096 to"),
        ("[broker]\nsegment_bytes = 0", "broker.segment_bytes is 0: use a multiple of 4096"),
        ("[broker]\nsegment_bytes = 8589934592", "broker.segment_bytes is 8589934592: use a multiple"),
        (
            "[broker]\nsegment_bytes = 1048576",
            "broker.message_bytes_max 2097152 does not fit into broker.segment_bytes",
        ),
        ("[broker]\ntransfer_bytes_max = 2097152", "broker.message_bytes_max 2097152 does not fit into one get"),
        (
            "[broker]\nmessage_bytes_max = 16777217",
            "broker.message_bytes_max is 16777217: use a number from 1 to 16777216",
        ),
        (
            "[broker]\nbody_bytes_max = 1048576",
            "broker.message_bytes_max 2097152 does not fit into broker.body_bytes_max",
        ),
        (
            "[broker]\nreceived_bytes_total_max = 1048576",
            "broker.body_bytes_max 16777216 does not fit into broker.received_bytes_total_max 1048576",
        ),
        (
            "[broker]\nunsent_bytes_total_max = 8388607",
            "broker.unsent_bytes_total_max 8388607 is less than one connection may hold: make it at least 8388608",
        ),
        ("[broker]\nline_bytes_max = 100", "broker.line_bytes_max is 100: use a number from 2048 to 1048576"),
        ("[broker]\nconnections_max = 0", "broker.connections_max is 0: use a number from 1 to"),
        ("[filters.'a*']\ng = 'x'", "filters.'a*': a filter is for one topic, not for a pattern"),
        ("[filters.'a b']\ng = 'x'", "filters.'a b': "),
        ("[filters.t]\ng = ''", "filters.t.g is empty: name an entry point of metaq.filters"),
        ("[filters.t]\ng = 1", "filters[...][...]: expected `str`, got `int`"),
        ("[broker]\ntransfer_bytes_max = 16777217", "broker.transfer_bytes_max is 16777217: use a number from 1"),
        ("[broker]\ncheckpoint_seconds = nan", "broker.checkpoint_seconds is nan: use a number from"),
        ("[broker]\nidle_seconds_max = inf", "broker.idle_seconds_max is inf: use a number from"),
        (
            "[broker]\nunsent_bytes_max = 1000000000000000000000000",
            "broker.unsent_bytes_max is 1000000000000000000000000",
        ),
        ("[broker]\ncluster = ''", "broker.cluster '' is not 1 to 64 bytes long"),
        (f"[broker]\ncluster = '{'é' * 33}'", "broker.cluster 'ééé"),
        ("[broker]\nflush = 'sometimes'", "broker.flush: 'sometimes' is no flush mode: use sync, or interval:"),
        ("[broker]\nflush = 'interval:0'", "broker.flush: 'interval:0' is no flush mode"),
        ("[broker]\nflush = 'interval:60001'", "broker.flush: 'interval:60001' is no flush mode"),
        ("[broker]\nhost = ''", "broker.host '' is no host name"),
        ("[broker]\nadvertised_host = 'a b'", "broker.advertised_host 'a b' is no host name"),
        ("[broker]\nadvertised_host = 'h:8123'", "broker.advertised_host 'h:8123' is no host name"),
        ("[zookeeper]\nsession_timeout_ms = 0", "zookeeper.session_timeout_ms is 0: use a number from 1000"),
        ("[zookeeper]\nconnect_timeout_ms = 0", "zookeeper.connect_timeout_ms is 0: use a number from 100"),
        ("[zookeeper]\nsync_ms = -1", "zookeeper.sync_ms is -1: use a number from 0"),
        ("[zookeeper]\nroot = '/a/../b'", "zookeeper.root: '..' cannot be a ZooKeeper node"),
        ("", "no topic: add a section [topics.NAME]"),
        ("[topics.'a b']", "topics.'a b': a topic name holds no slash"),
        ("[topics.'a/b']", "topics.'a/b': a topic name holds no slash"),
        ("[topics.'..']", "topics.'..': a topic name holds no slash"),
        ("[topics.'\U0001f600']", "topics.'\U0001f600': a topic name holds no slash"),
        ("[topics.'\ufffd']", "topics.'\ufffd': a topic name holds no slash"),
        (f"[topics.{'x' * 201}]", f"topics.'{'x' * 201}': a topic name is 1 to 200 bytes long"),
        ("[topics.'']", "topics.'': a topic name is 1 to 200 bytes long"),
        ("[topics.orders]\npartitions = 0", "topics.orders.partitions is 0: use a number from 1 to 65536"),
        ('[topics.orders]\nindex = "id"', "topics[...].index: invalid enum value 'id'"),
        ('[topics.orders]\ncompression = ["gzip"]', "topics.orders.compression: 'gzip' is no codec: use lz4, zstd"),
        ('[topics.orders]\ncompression = "zstd"', "topics[...].compression: expected `array`, got `str`"),
        ('[topics.orders]\ncompression = ["lz4", "gzip"]', "topics.orders.compression: 'gzip' is no codec"),
        ("[access]\nuser = 'b'", "access.user and access.password_file need each other: give both"),
        ("[access]\npassword_file = 'b'", "access.user and access.password_file need each other: give both"),
        ("[admin]\nhost = ''", "admin.host '' is no host name"),
        ("[replication]\nsilence_ms = 1000\nheartbeat_ms = 500", "replication.silence_ms 1000 is less than four"),
        ("[retention]\nwhen = 'soon'", "retention.when: "),
        ("[retention]\npolicy = 'archive'", "retention.archive, a directory or URL, and policy"),
        ("[retention]\narchive = '/a'", "retention.archive, a directory or URL, and policy"),
        ("[retention]\narchive_cache_bytes = 1", "retention.archive_cache_bytes: needs retention.archive"),
        ("[topics.orders]\npartitions = 65537", "topics.orders.partitions is 65537: use a number from 1 to 65536"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(text: str | bytes, line: str, tmp_path: Path) -> None:
    complete = text if isinstance(text, bytes) or not text or "topics" in text else text + ANY_TOPIC
    assert refusal(tmp_path, complete).startswith(line)


@pytest.mark.parametrize(
    "key",
    [
        "transfer_bytes_max",
        "message_bytes_max",
        "queued_bytes_max",
        "unsent_bytes_max",
        "checkpoint_bytes",
        "checkpoint_seconds",
        "transaction_timeout_seconds_max",
        "transactions_max",
        "idle_seconds_max",
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_is_above_zero(key: str, value: int, tmp_path: Path) -> None:
    line = refusal(tmp_path, f"[broker]\n{key} = {value}{ANY_TOPIC}")
    assert line.startswith(f"broker.{key} is {value}")
    assert "use a number from " in line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"broker_id": -1}, "--id -1: a broker id is a number from 0 to 1023"),
        ({"broker_id": 1024}, "--id 1024: a broker id is a number from 0 to 1023"),
        ({"port": -1}, "--port -1: a port is a number from 0 (any free one) to 65535"),
        ({"port": 65536}, "--port 65536: a port is a number from 0 (any free one) to 65535"),
        ({"flush": "never"}, "--flush: 'never' is no flush mode: use sync, or interval:<1..60000 milliseconds>"),
    ],
)
def test_the_command_line_is_checked_too(options: dict[str, object], line: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, ANY_TOPIC, **options) == line


def test_messages_are_not_archived_where_they_are(tmp_path: Path) -> None:
    line = refusal(tmp_path, f"[retention]\npolicy = 'archive'\narchive = '{tmp_path}/x/../data'{ANY_TOPIC}")
    assert line == f"retention.archive {tmp_path}/x/../data is the data directory: name another one"


def test_every_host_is_nobodys_address(tmp_path: Path) -> None:
    text = "[broker]\nhost = '0.0.0.0'\ninsecure = true" + ANY_TOPIC
    assert load_text(tmp_path, text).broker.host == "0.0.0.0"
    line = refusal(tmp_path, text, zookeeper="zk:2181")
    assert line == "broker.host 0.0.0.0 is no address that clients could connect to: set broker.advertised_host"
    told = load_text(
        tmp_path,
        "[broker]\nhost = '::'\ninsecure = true\nadvertised_host = 'b0.example'" + ANY_TOPIC,
        zookeeper="zk:2181",
    )
    assert told.url_host == "b0.example"


def test_an_ipv6_host_stands_in_brackets_in_the_url(tmp_path: Path) -> None:
    assert load_text(tmp_path, "[broker]\nhost = '::1'" + ANY_TOPIC).url_host == "::1"
    assert load_text(tmp_path, "[broker]\nhost = '127.0.0.1'" + ANY_TOPIC).url_host == "127.0.0.1"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            load(path, data=tmp_path, broker_id=0, port=0)
        assert str(caught.value) == f"{path}: {reason}: name a readable TOML file with --config"


def test_every_key_is_read(tmp_path: Path) -> None:
    text = """
        [broker]
        cluster = "prod"
        host = "::1"
        advertised_host = "b0.example"
        flush = "interval:50"
        segment_bytes = 67108864
        transfer_bytes_max = 8388608
        message_bytes_max = 4194304
        queued_bytes_max = 1
        unsent_bytes_max = 2
        checkpoint_bytes = 3
        checkpoint_seconds = 4
        transaction_timeout_seconds_max = 5
        transactions_max = 6
        tell_end_offset = true
        idle_seconds_max = 7.5
        [zookeeper]
        root = "/elsewhere"
        session_timeout_ms = 6000
        connect_timeout_ms = 7000
        sync_ms = 0
        [topics.orders]
        partitions = 8
        accept_publish = false
        accept_subscribe = false
        stat = true
        [topics."dynamic-*"]
    """
    config = load_text(tmp_path, text, broker_id=1023, port=65535, zookeeper="zk:2181/chroot")
    assert config == BrokerConfig(
        data=tmp_path / "data",
        broker_id=1023,
        port=65535,
        zookeeper="zk:2181/chroot",
        broker=BrokerSection(
            cluster="prod",
            host="::1",
            advertised_host="b0.example",
            flush="interval:50",
            segment_bytes=64 << 20,
            transfer_bytes_max=8 << 20,
            message_bytes_max=4 << 20,
            queued_bytes_max=1,
            unsent_bytes_max=2,
            checkpoint_bytes=3,
            checkpoint_seconds=4.0,
            transaction_timeout_seconds_max=5,
            transactions_max=6,
            tell_end_offset=True,
            idle_seconds_max=7.5,
        ),
        zookeeper_section=ZooKeeperSection(
            root="/elsewhere", session_timeout_ms=6000, connect_timeout_ms=7000, sync_ms=0
        ),
        topics={
            "orders": TopicConfig(partitions=8, accept_publish=False, accept_subscribe=False, stat=True),
            "dynamic-*": TopicConfig(),
        },
        flush=FlushMode(50),
        path=tmp_path / "broker.toml",
        source=text.encode(),
    )
    assert config.checksum == zlib.crc32(text.encode())
    assert load_text(tmp_path, text, flush="sync").flush == FlushMode(0)


def test_without_a_file_every_topic_is_allowed(tmp_path: Path) -> None:
    config = load(None, data=tmp_path, broker_id=0, port=8123)
    assert config.topics == {"*": TopicConfig(partitions=4)}
    assert (config.broker, config.flush, config.source, config.checksum) == (BrokerSection(), FlushMode(0), b"", 0)


def test_a_message_that_may_be_put_can_be_got() -> None:
    assert BrokerSection().message_bytes_max + 20 <= BrokerSection().transfer_bytes_max


def test_a_slave_must_say_who_it_is_and_find_its_master(tmp_path: Path) -> None:
    assert refusal(tmp_path, ANY_TOPIC, role="slave", master="here:8123") == (
        "slave: a slave needs an id: give --slave-id N, unique among the slaves of this broker id"
    )
    assert refusal(tmp_path, ANY_TOPIC, role="slave", slave_id=1) == (
        "slave: a slave must find its master: give --zk, or --master HOST:PORT"
    )
    for options in ({"master": "[::1]:8123"}, {"master": "here:8123"}, {"zookeeper": "here:2181"}):
        config = load_text(tmp_path, ANY_TOPIC, role="slave", slave_id=1, **options)
        assert config.is_slave
        assert (config.slave.id, config.slave.master) == (1, options.get("master"))


def test_the_command_line_overrules_which_slave_it_is(tmp_path: Path) -> None:
    text = "[slave]\nid = 7\nmaster = 'here:1'\nregister = false" + ANY_TOPIC
    config = load_text(tmp_path, text)
    assert (config.is_slave, config.slave) == (False, SlaveSection(id=7, master="here:1", register=False))
    config = load_text(tmp_path, text, role="slave", slave_id=8, master="there:2")
    assert (config.is_slave, config.slave) == (True, SlaveSection(id=8, master="there:2", register=False))
