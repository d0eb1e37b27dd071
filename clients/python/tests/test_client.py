"""Pools, claims of all hosts, runs, steps, settings and durations."""

import os
import ssl
import threading
import tracemalloc
import unittest
from datetime import timedelta
from typing import Any, Dict
from unittest import mock

import berth
from berth.transport import settings
from berth.values import text

from .rig import Case, Proxy


class ClientTest(Case):
    def test_pools(self) -> None:
        client, pool = berth.Client(), self.pool(3, lease_duration="1m")
        self.assertEqual(client.pools.get(pool)["lease_duration"], "1m0s")
        client.pools.set(pool, 5, reserve_after=-1)
        got = client.pools.get(pool)
        self.assertEqual((got["limit"], got["lease_duration"], got["reserve_after"]), (5, "1m0s", "-1"))
        self.assertIs(client.pools.set(pool, paused=True)["paused"], True)
        self.assertIn(pool, [p["name"] for p in client.pools.list()])
        client.pools.delete(pool)
        with self.assertRaises(berth.BerthError) as caught:
            client.pools.get(pool)
        self.assertEqual((caught.exception.code, caught.exception.status), ("pool_not_found", 404))
        with self.assertRaises(berth.BerthError) as missing:
            client.pools.set(pool, paused=True)
        self.assertEqual(missing.exception.code, "pool_not_found")
        with self.assertRaises(berth.BerthError) as bad:
            client.pools.set(pool, -7)
        self.assertEqual(bad.exception.fields["errors"][0]["field"], "limit")

    def test_an_answer_takes_the_memory_that_it_needs(self) -> None:
        client, pool = berth.Client(), self.pool()
        tracemalloc.start()
        try:
            client.pools.get(pool)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 8 << 20)

    def test_why_a_claim_waits(self) -> None:
        client, pool = berth.Client(), self.pool()
        with berth.claim({pool: 1}) as c:
            waiting = berth.claim({pool: 1}, wait="10m", id="w" + pool)
            waiting.poll()
            why = client.claims.why(waiting.id)
            self.assertIn("full", why["reason"]["text"])
            self.assertEqual(why["reason"]["holders"][0]["claim"], c.id)
            self.assertEqual([x["status"] for x in client.claims.list(pool=pool)], ["held", "waiting"])
            self.assertEqual([x["id"] for x in client.claims.list(pool=pool, status="waiting")], [waiting.id])

    def test_runs(self) -> None:
        client = berth.Client()
        run = client.runs.submit(name="nightly", tags={"env": "of-the-test"}, priority=2)
        client.runs.submit(id=run["id"], name="nightly", tags={"env": "of-the-test"}, priority=2)  # again, as after a lost answer
        self.assertEqual([r["id"] for r in client.runs.list(tags={"env": "of-the-test"})], [run["id"]])
        self.assertEqual(client.runs.why(run["id"])["run"]["id"], run["id"])
        with self.assertRaises(TimeoutError):
            client.runs.wait(run["id"], timeout=0)
        client.runs.cancel(run["id"], reason="not today")
        ended = client.runs.wait(run["id"])
        self.assertEqual((ended["status"], ended["error"]), ("canceled", "not today"))
        self.assertIn("RunCanceled", [e["type"] for e in client.runs.events(run["id"])])
        self.assertEqual(client.runs.retry(run["id"])["id"], run["id"])
        client.runs.cancel(run["id"])
        with self.assertRaises(berth.BerthError) as missing:
            client.runs.get("nope")
        self.assertEqual(missing.exception.code, "run_not_found")

    def test_an_answer_that_is_lost_submits_one_run(self) -> None:
        proxy = Proxy(self.dev.http, lambda first, n: n == 1)
        self.addCleanup(proxy.close)
        client = berth.Client(proxy.http)
        client.runs.submit(tags={"once": "yes"})
        self.assertEqual(len(client.runs.list(tags={"once": "yes"})), 1)

    def test_steps_are_executed(self) -> None:
        client, pool = berth.Client(), self.pool()
        run = client.runs.submit(
            steps=[
                {"name": "extract", "items": ["mon", "tue", "bad"], "external": True, "queue": pool, "pools": {pool: 1}, "on_failure": "finish"},
                {"name": "report", "external": True, "queue": pool, "input": {"of": 1}},
            ]
        )
        seen: Dict[Any, int] = {}

        def work(one: berth.Work) -> str:
            one.check()
            seen[str(one.input)] = one.fence
            if one.input == "bad":
                raise ValueError("not today: \udcff")  # as in the name of a file that is not UTF-8
            return f"{one.step} {one.input}\udcff\n"

        stop = threading.Event()
        with self.assertLogs("berth", "WARNING"):
            done = 0
            while done < 4:
                done += berth.execute(work, queue=pool, wait="2s", stop=stop, client=client)
        self.assertEqual(sorted(seen), ["bad", "mon", "tue", "{'of': 1}"])
        self.assertEqual(client.runs.wait(run["id"], "1m")["status"], "failed")
        self.assertEqual(client.runs.logs(run["id"])["extract[0]"], "extract mon\\udcff\n")
        failed = client.steps.instances(run["id"], "extract", ["failed"])
        self.assertEqual([(i["index"], i["error"]) for i in failed], [(2, "ValueError: not today: \\udcff")])
        self.assertEqual({s["name"]: s["counts"]["succeeded"] for s in client.steps.list(run["id"])}, {"extract": 2, "report": 1})
        stop.set()
        self.assertEqual(berth.execute(work, queue=pool, stop=stop), 0)

    def test_a_canceled_run_ends_the_work(self) -> None:
        client, queue = berth.Client(), self.pool()
        run = client.runs.submit(steps=[{"name": "long", "external": True, "queue": queue}])["id"]
        ready = []
        self.until(lambda: bool(ready.extend(client.steps.ready(queue, "1s")) or ready))
        with self.assertRaises(berth.ClaimLost) as caught, mock.patch("berth.held.MAX_RENEW_PAUSE", 0.2):
            with berth.Work(run, "long", ttl="1m", client=client) as one:
                client.runs.cancel(run)
                self.assertTrue(one.lost.wait(60))
        self.assertEqual(caught.exception.code, "run_ended")
        self.assertEqual(client.steps.get(run, "long")["status"], "canceled")
        with self.assertRaises(berth.BerthError), berth.Work(run, "long", client=client):
            self.fail("it was taken again")

    def test_whoami_and_unknown_fields(self) -> None:
        self.assertEqual(berth.Client().whoami()["kind"], "anonymous")
        self.assertEqual(berth.Client(self.dev.socket).whoami()["kind"], "user")


class SettingsTest(unittest.TestCase):
    def test_addresses(self) -> None:
        for bad in ("127.0.0.1:7420", "http://", "http://a/b", "unix://", "unix://host/s", "ftp://a", "http://a:port", "http://u@a", "http://a?x=1"):
            with self.subTest(bad), self.assertRaisesRegex(berth.BerthError, "^sidecar: .*is no address"):
                berth.Client(bad)
        for good in ("http://127.0.0.1:7420", "http://[::1]:7420/", "unix:///run/berth.sock", "https://host:1"):
            berth.Client(good)

    def test_the_environment(self) -> None:
        with mock.patch.dict(os.environ, {"BERTH_SIDECAR": ""}):
            self.assertEqual(settings().sidecar, "http://127.0.0.1:7420")
        with mock.patch.dict(os.environ, {"BERTH_SIDECAR": "unix:///s", "BERTH_TOKEN": "0123456789abcdef"}):
            self.assertEqual(settings()[:2], ("unix:///s", "0123456789abcdef"))

    def test_bad_settings_name_the_field(self) -> None:
        for field, given in {
            "token": {"token": "short"},
            "sidecar_cert": {"cert": "a", "sidecar": "https://a"},
            "sidecar_cacert": {"cacert": "a", "sidecar": "http://a"},
            "sidecar_cacert, sidecar_cert, sidecar_key": {"cacert": "/nowhere", "sidecar": "https://a"},
        }.items():
            with self.subTest(field), self.assertRaisesRegex(berth.BerthError, f"^{field}: "):
                berth.Client(**given)

    def test_a_token_is_not_sent_in_plain_text_to_another_host(self) -> None:
        token = "0123456789abcdef"
        for other in ("http://berth.example.com:7420", "http://192.0.2.1", "http://0.0.0.0:1", "http://localhost.example.com", "http://[2001:db8::1]"):
            with self.subTest(other):
                with self.assertRaisesRegex(berth.BerthError, "^sidecar: a token is not sent to .* over plain HTTP.*insecure=True"):
                    berth.Client(other, token)
                berth.Client(other)
                berth.Client(other, token, insecure=True)
                with mock.patch.dict(os.environ, {"BERTH_INSECURE": "true"}):
                    berth.Client(other, token)
        for own in ("http://127.0.0.1:7420", "http://127.9.9.9", "http://LOCALHOST:1", "http://[::1]:7420", "unix:///s", "https://berth.example.com"):
            with self.subTest(own):
                berth.Client(own, token)
        with mock.patch.dict(os.environ, {"BERTH_INSECURE": "yes"}), self.assertRaisesRegex(berth.BerthError, "^insecure: 'yes' is not true or false"):
            berth.Client("http://127.0.0.1:1", token)

    def test_token_files(self) -> None:
        path = f"/tmp/berth-token-{os.getpid()}"
        with open(path, "w", encoding="ascii") as file:
            file.write("0123456789abcdef\n")
        self.addCleanup(os.remove, path)
        with mock.patch.dict(os.environ, {"BERTH_TOKEN": "", "BERTH_TOKEN_FILE": path}):
            os.chmod(path, 0o600)
            self.assertEqual(settings().token, "0123456789abcdef")
            os.chmod(path, 0o644)
            with self.assertRaisesRegex(berth.BerthError, "chmod o-rwx"):
                settings()
            os.remove(path)
            with self.assertRaisesRegex(berth.BerthError, "^token_file: .*can't be read"):
                settings()
            open(path, "w", encoding="ascii").close()

    def test_tls_needs_a_known_authority(self) -> None:
        client = berth.Client("https://127.0.0.1:1")
        assert client.transport._tls is not None
        self.assertEqual(client.transport._tls.verify_mode, ssl.CERT_REQUIRED)
        self.assertTrue(client.transport._tls.check_hostname)


class DurationTest(unittest.TestCase):
    def test_durations(self) -> None:
        for given, want in {"0": 0, "0s": 0, "90s": 90, "1h30m": 5400, "4m53.2s": 293.2, "250ms": 0.25, "10us": 1e-5, 5: 5, 0.5: 0.5}.items():
            self.assertAlmostEqual(berth.seconds(given), want)
        self.assertEqual(berth.seconds(timedelta(minutes=2)), 120)
        self.assertEqual(text("1h30m"), "5400000ms")
        bad: Any
        for bad in ("", "5", "s", "1x", "1m ", "-1s", -1, True, None, [], "1e3s", float("inf"), float("nan"), "٣s", "1.٣s", "３m"):
            with self.subTest(bad), self.assertRaisesRegex(berth.BerthError, "^wait: "):
                berth.seconds(bad, "wait")


if __name__ == "__main__":
    unittest.main()
