"""The gateway on a real Ray cluster of three hosts, with children that stand in for remote workers.

Tests run in the order of this file: the later ones break the cluster.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.on_ray.cluster import PORT, Cluster
from tests.on_ray.driver import ACTOR, GATEWAY, STAND_IN, Driver, until_gone

OTHER_PENSTOCK = Path(__file__).with_name("other")
"""A folder with a `penstock` of another version."""

LISTEN = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(60)"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[Driver]:
    """A gateway that several tests share."""
    found = Driver(cluster)
    yield found
    found.close()


@pytest.fixture(scope="module")
def open_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster of one node and a machine beside it, without authentication; the other one is over by then."""
    cluster.close()
    with Cluster(2, env={"RAY_AUTH_MODE": "disabled"}) as found:
        found.start_head(1)
        yield found


def test_workers_come_on_both_nodes_and_listen_there(driver: Driver) -> None:
    driver.want(2)
    driver.has(2)
    assert {told["host"]: told["node"] for told in driver.workers.values()} == {
        "10.77.0.11": "h1",
        "10.77.0.12": "h2",
    }
    for number, told in driver.workers.items():
        assert driver.talk(number, "ping")[:2] == [told["key"], told["node"]]
    assert len({told["key"] for told in driver.workers.values()}) == 2
    driver.until(lambda driver: driver.state["running"] == 2)
    assert not driver.troubles


def test_their_number_grows_and_shrinks(driver: Driver) -> None:
    before = set(driver.workers)
    driver.want(3)
    driver.has(3)
    driver.want(1)
    driver.has(1)
    assert set(driver.workers) < before
    assert set(driver.gone.values()) == {"it is no longer wanted"}
    until_true(lambda: len(children(driver.cluster)) == 1)
    driver.want(2)
    driver.has(2)


def test_a_child_that_crashed_is_replaced_and_has_a_new_key(driver: Driver) -> None:
    number, told = next(iter(driver.workers.items()))
    driver.talk(number, "crash")
    driver.until(lambda driver: number in driver.gone)
    assert driver.gone[number] == "it ended with exit code 3; its last words: stand-in: crashed as asked"
    driver.has(2)
    fresh = driver.workers[max(driver.workers)]
    assert fresh["host"] == told["host"]
    assert fresh["key"] != told["key"]
    assert driver.talk(max(driver.workers), "ping")[0] == fresh["key"]


def test_a_child_that_was_killed_is_replaced(driver: Driver) -> None:
    number = min(driver.workers)
    driver.talk(number, "kill")
    driver.until(lambda driver: number in driver.gone)
    assert "it was killed by SIGKILL" in driver.gone[number]
    driver.has(2)


def test_a_killed_actor_takes_its_child_along_and_both_are_replaced(driver: Driver) -> None:
    number, told = next(iter(driver.workers.items()))
    before = driver.cluster.pids(told["node"], STAND_IN)
    assert driver.cluster.kill(told["node"], ACTOR)
    driver.until(lambda driver: number in driver.gone)
    assert driver.gone[number].startswith("its actor ")
    until_true(lambda: not set(before) & set(children(driver.cluster)))
    driver.has(2)


def test_workers_beyond_the_free_cpus_are_told_of_and_come_when_cpus_are_free(
    cluster: Cluster, driver: Driver, drivers: list[Driver]
) -> None:
    driver.want(3)
    driver.has(3)
    other = Driver(cluster, patience_s=2.0)
    drivers.append(other)
    other.want(2)
    other.has(1)
    text = other.complaint("of 2 remote workers are not started after 2 s")
    assert "0 of 4 CPUs of the cluster are free" in text
    assert "add nodes, end other jobs there, or ask for fewer workers" in text
    driver.want(2)
    other.has(2)
    driver.close(last=False)
    for number, told in other.workers.items():
        assert other.talk(number, "ping")[0] == told["key"]


@pytest.mark.parametrize(
    ("env", "config", "says"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, {}, ("did not accept this machine's token: ", "set RAY_AUTH_TOKEN")),
        ({"RAY_AUTH_TOKEN_PATH": ""}, {}, ("needs a token, and there is none here: ", "set RAY_AUTH_TOKEN")),
        ({"RAY_AUTH_MODE": "disabled"}, {}, ("RAY_AUTH_MODE=disabled here: ", "set RAY_AUTH_MODE=token")),
        (
            {},
            {"address": "10.77.0.10:7"},
            ("no Ray cluster answers at 10.77.0.10:7 (Connection refused): ", "check"),
        ),
    ],
    ids=["wrong token", "no token", "authentication off here", "no cluster"],
)
def test_why_a_cluster_cannot_be_joined_is_one_sentence(
    cluster: Cluster,
    drivers: list[Driver],
    env: dict[str, str],
    config: dict[str, str],
    says: tuple[str, ...],
) -> None:
    driver = Driver(cluster, env=env, **config)
    drivers.append(driver)
    text = driver.fatal()
    assert "\n" not in text
    for part in says:
        assert part in text
    assert driver.process.returncode == 1


def test_a_child_that_never_answers_is_given_up_in_the_end(cluster: Cluster, drivers: list[Driver]) -> None:
    driver = Driver(cluster, "mute", child_start_s=1.0, max_failures=2, pause_s=0.1)
    drivers.append(driver)
    driver.want(1)
    text = driver.complaint("failed 2 times in a row")
    assert "it did not say its port within 1 s" in text
    driver.until(lambda driver: driver.state["given_up"] == 1)
    assert not driver.workers


def test_another_version_of_penstock_on_a_node_is_one_sentence(
    cluster: Cluster, drivers: list[Driver]
) -> None:
    driver = Driver(cluster, max_failures=1)
    drivers.append(driver)
    driver.want(1, options={"runtime_env": {"env_vars": {"PYTHONPATH": str(OTHER_PENSTOCK)}}})
    text = driver.complaint("is needed on h")
    assert "and 0.0.0+other is there: pip install penstock==" in text


def test_everything_ends_when_the_client_or_the_gateway_does(cluster: Cluster, drivers: list[Driver]) -> None:
    for end in ("client", "gateway"):
        driver = Driver(cluster)
        drivers.append(driver)
        driver.want(2)
        driver.has(2)
        started = time.monotonic()
        if end == "client":
            driver.sock.shutdown(socket.SHUT_RDWR)
        else:
            cluster.kill("h0", GATEWAY)
        driver.process.wait(5.0)
        until_gone(cluster, within_s=5.0 - (time.monotonic() - started))


def test_workers_of_a_lost_node_are_replaced_on_another(cluster: Cluster, drivers: list[Driver]) -> None:
    driver = Driver(cluster)
    drivers.append(driver)
    driver.want(2)
    driver.has(2)
    number = next(number for number, told in driver.workers.items() if told["node"] == "h2")
    assert cluster.kill("h2", "raylet/raylet ")
    driver.until(lambda driver: number in driver.gone)
    assert driver.gone[number].startswith("its actor ")
    driver.has(2)
    assert {told["node"] for told in driver.workers.values()} == {"h1"}
    assert not cluster.pids("h2", STAND_IN)


def test_workers_go_on_when_rays_head_is_killed(cluster: Cluster, drivers: list[Driver]) -> None:
    driver = Driver(cluster, headless_s=3.0)
    drivers.append(driver)
    driver.want(1)
    driver.has(1)
    ((number, told),) = driver.workers.items()
    assert cluster.kill("h0", "gcs_server")
    driver.complaint("Ray's head at 10.77.0.10:6379 does not answer")
    assert driver.talk(number, "ping")[0] == told["key"]
    assert "the gateway ends; start it again when the cluster is back" in driver.fatal()
    # Ray's raylets end without their head, after `RECONNECT_S`, and actors with them.
    until_true(lambda: not cluster.pids("h1", ACTOR), within_s=60.0)
    assert driver.talk(number, "ping")[0] == told["key"]
    assert not driver.gone
    with cluster.popen(
        "h0", [sys.executable, "-S", "-c", LISTEN]
    ) as head:  # a new head knows nothing of the child
        until_true(lambda: not cluster.pids("h1", STAND_IN), within_s=10.0)
        cluster.kill("h0", "create_server")
        head.wait()


@pytest.mark.parametrize("mode", ["", "disabled", "token"])
def test_a_cluster_without_authentication_is_refused_unless_allowed(open_cluster: Cluster, mode: str) -> None:
    driver = Driver(open_cluster, env={"RAY_AUTH_MODE": mode})
    assert "has no authentication" in driver.fatal()
    driver.close()
    if mode != "":
        return
    driver = Driver(open_cluster, env={"RAY_AUTH_MODE": mode}, allow_unauthenticated=True)
    driver.want(1)
    driver.has(1)
    driver.close()


def test_a_machine_that_is_no_node_is_told_what_to_do(open_cluster: Cluster) -> None:
    driver = Driver(open_cluster, host="h1", allow_unauthenticated=True)
    assert "run `ray start --address=10.77.0.10:6379 --num-cpus=0` here" in driver.fatal()
    driver.close()


def test_hosts_are_parted_and_joined_again(open_cluster: Cluster) -> None:
    open_cluster.cut("h1")
    assert knock_from(open_cluster, "h1") == "no answer within 3 s\n"
    open_cluster.heal("h1")
    assert knock_from(open_cluster, "h1") == "\n"


def knock_from(cluster: Cluster, host: str) -> str:
    code = f"from penstock.remote.probe import knock; print(knock('10.77.0.10', {PORT}))"
    return cluster.run(host, [sys.executable, "-c", code])


def children(cluster: Cluster) -> list[int]:
    return cluster.pids("h1", STAND_IN) + cluster.pids("h2", STAND_IN)


def until_true(true: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
