"""Claims: what a program that uses ``with berth.claim`` relies on."""

import os
import signal
import threading
import unittest
from unittest import mock

import berth
from berth import held as held_module
from berth.values import now

from .rig import PATIENCE, Background, Case, Dev, Proxy


class ClaimTest(Case):
    def test_slots_are_held_in_the_block_and_free_after_it(self) -> None:
        pool = self.pool(2)
        with berth.claim({pool: 2}, wait="1m", priority=3, labels={"team": "data"}, run_id="nightly", step_key="load") as c:
            info = berth.Client().claims.get(c.id)
            self.assertEqual(
                (info["status"], info["pools"], info["priority"], info["labels"], info["run_id"], info["step_key"], info["fence"]),
                ("held", {pool: 2}, 3, {"team": "data"}, "nightly", "load", c.fence),
            )
            self.assertGreater(c.valid_for, c.grace)
            c.check()
            first = c.fence
        self.pool_is(pool, 0, 0)
        self.assertTrue(c.client_token)
        with berth.claim({pool: 1}) as c:
            self.assertGreater(c.fence, first)

    def test_an_error_of_the_block_is_raised_and_the_slots_are_free(self) -> None:
        pool = self.pool()
        with self.assertRaisesRegex(KeyError, "mine"):
            with berth.claim({pool: 1}):
                raise KeyError("mine")
        self.pool_is(pool, 0, 0)

    def test_over_the_unix_socket(self) -> None:
        pool = self.pool()
        with berth.claim({pool: 1}, client=berth.Client(self.dev.socket)) as c:
            self.assertTrue(berth.Client().claims.get(c.id)["claimed_by"].startswith("user:"))
        self.pool_is(pool, 0, 0)

    def test_a_claim_is_renewed(self) -> None:
        pool = self.pool()
        with mock.patch("berth.held.MAX_RENEW_PAUSE", 0.1), berth.claim({pool: 1}, ttl=60) as c:
            first = c.info["valid_until"]
            self.until(lambda: c.info["valid_until"] > first)
            c.check()
        with berth.claim({pool: 1}, ttl=15) as c:
            self.assertEqual(c._every, 5)  # a third of the ttl
        with berth.claim({pool: 1}, ttl=60) as c:
            self.assertEqual(c._every, 10)

    def test_threads_share_a_pool(self) -> None:
        pool, most = self.pool(2), []
        running = []

        def work() -> None:
            with berth.claim({pool: 1}, wait="1m"):
                running.append(1)
                most.append(len(running))
                running.pop()

        for one in [Background(work) for _ in range(8)]:
            one.join()
        self.assertEqual(len(most), 8)
        self.assertLessEqual(max(most), 2)
        self.pool_is(pool, 0, 0)

    def test_refusals(self) -> None:
        pool = self.pool()
        with self.assertRaises(berth.NoCapacity) as caught, berth.claim({pool: 1}), berth.claim({pool: 1}, wait=0):
            self.fail("both were granted")
        self.assertEqual((caught.exception.code, caught.exception.status), ("no_capacity", 409))
        self.assertEqual(caught.exception.fields["holders"][0]["pool"], pool)
        with berth.claim({pool: 1}):
            with self.assertRaises(berth.NoCapacity) as timeout, berth.claim({pool: 1}, wait="50ms"):
                self.fail("both were granted")
        self.assertEqual(timeout.exception.code, "claim_timeout")
        for code, bad in {"exceeds_limit": {pool: 2}, "pool_not_found": {"nope": 1}, "invalid": {pool: -1}}.items():
            with self.assertRaises(berth.BerthError) as refused, berth.claim(bad):
                self.fail("it was granted")
            self.assertEqual(refused.exception.code, code)
        self.pool_is(pool, 0, 0)

    def test_bad_arguments_name_the_field(self) -> None:
        for field, options in {
            "pools": {"pools": {}},
            "wait": {"wait": "soon"},
            "ttl": {"ttl": "5 minutes"},
            "id": {"id": ""},
        }.items():
            with self.assertRaisesRegex(berth.BerthError, f"^{field}: "):
                berth.claim(**{"pools": {"db": 1}, **options})  # type: ignore[arg-type]
        c = berth.claim({self.pool(): 1})
        with c:
            with self.assertRaises(RuntimeError):
                c.acquire()

    def test_an_id_in_use_is_refused_and_its_claim_stays(self) -> None:
        pool = self.pool(2)
        c = berth.claim({pool: 1}, id="mine" + pool).acquire()
        with self.assertRaises(berth.BerthError) as refused, berth.claim({pool: 1}, id=c.id):
            self.fail("two claims share an id")
        self.assertEqual(refused.exception.code, "id_in_use")
        self.pool_is(pool, 1, 0)
        with berth.claim({pool: 1}, id=c.id, client_token=c.client_token) as again:
            self.assertEqual(again.fence, c.fence)
        c.release()  # that is done already, and no error
        self.pool_is(pool, 0, 0)

    def test_an_answer_that_is_lost_is_requested_again(self) -> None:
        for wait in ("1m", 0):
            pool = self.pool()
            with self.subTest(wait=wait):
                proxy = Proxy(self.dev.http, lambda first, n: n == 1 and first.split()[0] in ("POST", "DELETE"))
                self.addCleanup(proxy.close)
                with berth.claim({pool: 1}, wait=wait, client=berth.Client(proxy.http)) as c:
                    self.pool_is(pool, 1, 0)
                    self.assertEqual(berth.Client().claims.get(c.id)["fence"], c.fence)
                self.assertEqual(proxy.requests.count("POST /v1/claims HTTP/1.1"), 2)
                self.assertEqual(len([r for r in proxy.requests if r.startswith("DELETE")]), 2)
                self.pool_is(pool, 0, 0)

    def test_a_sidecar_that_never_answers(self) -> None:
        pool = self.pool()
        proxy = Proxy(self.dev.http, lambda first, n: first.startswith("POST"))
        self.addCleanup(proxy.close)
        with mock.patch("berth.claims.PATIENCE", 0.5):
            with self.assertRaises(berth.Unavailable), berth.claim({pool: 1}, wait=0, client=berth.Client(proxy.http)):
                self.fail("it was granted")
        self.pool_is(pool, 0, 0)  # what was granted without an answer is released

    def test_no_sidecar(self) -> None:
        proxy = Proxy(self.dev.http, lambda first, n: False)
        proxy.close()
        with self.assertLogs("berth", "WARNING") as logged, self.assertRaises(berth.Unavailable) as caught:
            with berth.claim({"db": 1}, wait="300ms", client=berth.Client(proxy.http)):
                self.fail("it was granted")
        self.assertEqual(caught.exception.code, "unavailable")
        self.assertIn("can't be reached", str(caught.exception))
        self.assertIn("waiting for up to", logged.output[0])
        with self.assertRaises(berth.Unavailable), berth.claim({"db": 1}, wait=0, client=berth.Client(proxy.http)):
            self.fail("it was granted")

    def test_an_interrupt_during_the_wait_leaves_the_wait_queue(self) -> None:
        pool = self.pool()
        with berth.claim({pool: 1}):

            def interrupt() -> None:
                self.pool_is(pool, 1, 1)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

            waits = Background(interrupt)
            with self.assertRaises(KeyboardInterrupt), berth.claim({pool: 1}, wait="10m"):
                self.fail("it was granted")
            waits.join()
            self.pool_is(pool, 1, 0)

    def test_a_revocation_is_noticed_and_raised(self) -> None:
        pool, notified = self.pool(), []
        with self.assertRaises(berth.ClaimLost) as caught:
            with berth.claim({pool: 1}, on_lost=notified.append) as c:
                berth.Client().claims.revoke(c.id)
                self.assertTrue(c.lost.wait(PATIENCE))
                with self.assertRaises(berth.ClaimLost):
                    c.check()
        self.assertEqual(caught.exception.code, "claim_revoked")
        self.assertEqual(notified, [c])
        self.pool_is(pool, 0, 0)

    def test_the_error_of_the_block_wins_over_the_loss(self) -> None:
        pool = self.pool()
        with self.assertRaises(KeyError):
            with berth.claim({pool: 1}) as c:
                berth.Client().claims.revoke(c.id)
                c.lost.wait(PATIENCE)
                raise KeyError

    def test_a_release_that_fails_is_tried_again_and_reported(self) -> None:
        pool = self.pool()
        proxy = Proxy(self.dev.http, lambda first, n: first.startswith("DELETE"))
        self.addCleanup(proxy.close)
        with mock.patch("berth.claims._RELEASE_PATIENCE", 0.5), self.assertLogs("berth", "WARNING") as logged:
            with berth.claim({pool: 1}, client=berth.Client(proxy.http)):
                pass
        self.assertIn("could not be released", logged.output[0])
        self.assertGreater(len([r for r in proxy.requests if r.startswith("DELETE")]), 1)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_process_neither_renews_nor_releases(self) -> None:
        pool = self.pool()
        with berth.claim({pool: 1}, ttl=60) as c:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    c.check()
                    c.release()
                    c.__exit__(None, None, None)
                    code = 0 if threading.active_count() == 1 else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            self.assertEqual(berth.Client().claims.get(c.id)["status"], "held")
            c.check()
        self.pool_is(pool, 0, 0)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_process_knows_when_the_validity_has_ended(self) -> None:
        with berth.claim({self.pool(): 1}) as c:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    c.check()
                    valid = c.valid_for
                    with mock.patch.object(held_module, "now", lambda: now() + valid):
                        c.check()
                except berth.ClaimLost:
                    code = 0
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            c.check()

    def test_poll_waits_without_a_connection(self) -> None:
        pool = self.pool()
        options = dict(wait="10m", ttl="1m", id="later" + pool, client_token="secret-of-the-test")
        with berth.claim({pool: 1}):
            self.assertEqual(berth.claim({pool: 1}, **options).poll()["status"], "waiting")  # type: ignore[arg-type]
            self.pool_is(pool, 1, 1)
            self.assertEqual(berth.claim({pool: 1}, **options).poll()["status"], "waiting")  # type: ignore[arg-type]
        self.until(lambda: berth.claim({pool: 1}, **options).poll()["status"] == "held")  # type: ignore[arg-type]
        with berth.claim({pool: 1}, **options) as c:  # type: ignore[arg-type]
            self.assertEqual(c.id, options["id"])
            self.pool_is(pool, 1, 0)
        self.pool_is(pool, 0, 0)
        with self.assertRaisesRegex(berth.BerthError, "^id: "):
            berth.claim({pool: 1}).poll()


class LossTest(unittest.TestCase):
    def test_a_sidecar_that_is_killed(self) -> None:
        dev = Dev()
        self.addCleanup(dev.close)
        client = berth.Client(dev.http)
        client.pools.set("db", 1)
        with mock.patch("berth.claims._RELEASE_PATIENCE", 0.1), self.assertLogs("berth", "WARNING"):
            with self.assertRaises(berth.ClaimLost) as caught:
                with berth.claim({"db": 1}, ttl=3, client=client) as c:
                    dev.kill()
                    self.assertTrue(c.lost.wait(PATIENCE))
                    left = c.valid_for
                    c.check()
        self.assertEqual(caught.exception.code, "claim_lost")
        self.assertLessEqual(left, c.grace)

    def test_the_clock_alone_ends_a_claim(self) -> None:
        dev = Dev()
        self.addCleanup(dev.close)
        client = berth.Client(dev.http)
        client.pools.set("db", 1)
        with self.assertRaises(berth.ClaimLost):
            with berth.claim({"db": 1}, client=client) as c:
                valid = c.valid_for
                with mock.patch.object(held_module, "now", lambda: now() + valid):  # as after a suspended machine
                    with self.assertRaises(berth.ClaimLost):
                        c.check()
                c.check()  # it is final, and raises again


class LimitedTest(Case):
    def test_functions(self) -> None:
        pool = self.pool()

        @berth.limited({pool: 1}, wait="1m")
        def work(a: int, b: int = 0) -> "tuple[int, int]":
            self.assertEqual(berth.Client().claims.get(berth.current().id)["status"], "held")
            return a + b, berth.current().fence

        self.assertEqual(work.__name__, "work")
        (one, fence), (two, later) = work(1), work(1, b=1)
        self.assertEqual((one, two), (1, 2))
        self.assertGreater(later, fence)
        self.pool_is(pool, 0, 0)
        with self.assertRaises(RuntimeError):
            berth.current()

    def test_bad_uses_are_refused_at_once(self) -> None:
        with self.assertRaisesRegex(berth.BerthError, "^wait: "):
            berth.limited({"db": 1}, wait="soon")
        with self.assertRaises(TypeError):

            @berth.limited({"db": 1})
            def numbers() -> "object":
                yield 1


if __name__ == "__main__":
    unittest.main()
