"""Claims of asyncio."""

import asyncio
import sys
import unittest
from typing import Any, Callable

import berth

from .rig import PATIENCE, Case


async def until(done: Callable[[], bool]) -> None:
    """Wait for something, while the loop runs."""

    async def poll() -> None:
        while not await asyncio.to_thread(done):
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), PATIENCE)


class AioTest(Case):
    def counts(self, pool: str) -> Any:
        p = berth.Client().pools.get(pool)
        return p["claimed"], p["waiting"]

    def test_slots_are_held_in_the_block_and_free_after_it(self) -> None:
        pool = self.pool()

        async def main() -> None:
            async with berth.aio.claim({pool: 1}, wait="1m") as c:
                self.assertEqual(self.counts(pool), (1, 0))
                self.assertGreater(c.fence, 0)

        asyncio.run(main())
        self.pool_is(pool, 0, 0)

    def test_tasks_share_a_pool(self) -> None:
        pool, running, most = self.pool(2), [], []

        async def work() -> None:
            async with berth.aio.claim({pool: 1}, wait="1m"):
                running.append(1)
                most.append(len(running))
                await asyncio.sleep(0)
                running.pop()

        async def main() -> None:
            # More than the threads of the default executor.
            await asyncio.gather(*(work() for _ in range(40)))

        asyncio.run(main())
        self.assertLessEqual(max(most), 2)
        self.assertEqual(len(most), 40)
        self.pool_is(pool, 0, 0)

    def test_a_cancellation_during_the_wait_leaves_the_wait_queue(self) -> None:
        pool = self.pool()

        async def wait() -> None:
            async with berth.aio.claim({pool: 1}, wait="10m"):
                self.fail("it was granted")

        async def main() -> None:
            async with berth.aio.claim({pool: 1}):
                task = asyncio.create_task(wait())
                await until(lambda: self.counts(pool) == (1, 1))
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await until(lambda: self.counts(pool) == (1, 0))
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(wait(), 0.2)
                await until(lambda: self.counts(pool) == (1, 0))

        asyncio.run(main())
        self.pool_is(pool, 0, 0)

    def test_a_cancellation_of_the_block_releases(self) -> None:
        pool = self.pool()

        async def hold(held: asyncio.Event) -> None:
            async with berth.aio.claim({pool: 1}):
                held.set()
                await asyncio.sleep(PATIENCE)

        async def main() -> None:
            held = asyncio.Event()
            task = asyncio.create_task(hold(held))
            await held.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        self.pool_is(pool, 0, 0)

    def test_a_loss_cancels_the_block_and_is_raised(self) -> None:
        pool, notified = self.pool(), []

        async def main() -> None:
            with self.assertRaises(berth.ClaimLost) as caught:
                async with berth.aio.claim({pool: 1}, on_lost=notified.append) as c:
                    await asyncio.to_thread(berth.Client().claims.revoke, c.id)
                    await asyncio.sleep(PATIENCE)
                    self.fail("the block went on")
            self.assertEqual(caught.exception.code, "claim_revoked")
            self.assertEqual(len(notified), 1)
            await asyncio.sleep(0)  # the task is not canceled any more
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None
                self.assertEqual(task.cancelling(), 0)

        asyncio.run(main())
        self.pool_is(pool, 0, 0)

    @unittest.skipIf(sys.version_info < (3, 11), "a task counts its cancellations since Python 3.11")
    def test_another_cancellation_goes_on_after_a_loss(self) -> None:
        pool = self.pool()

        async def hold(holds: "asyncio.Future[berth.Claim]") -> None:
            async with berth.aio.claim({pool: 1}) as c:
                holds.set_result(c)
                try:
                    await asyncio.sleep(PATIENCE)
                finally:
                    while not canceled.is_set():
                        try:
                            await canceled.wait()
                        except asyncio.CancelledError:
                            pass

        async def main() -> None:
            holds: "asyncio.Future[berth.Claim]" = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(hold(holds))
            c = await holds
            await asyncio.to_thread(berth.Client().claims.revoke, c.id)
            await until(c.lost.is_set)
            task.cancel()
            canceled.set()
            with self.assertRaises(asyncio.CancelledError):
                await task

        canceled = asyncio.Event()
        asyncio.run(main())
        self.pool_is(pool, 0, 0)

    def test_decorated_coroutines(self) -> None:
        pool = self.pool()

        @berth.limited({pool: 1}, wait="1m")
        async def work(n: int) -> "tuple[int, int]":
            await asyncio.sleep(0)
            return n, berth.current().fence

        async def main() -> Any:
            return await asyncio.gather(*(work(n) for n in range(3)))

        done = asyncio.run(main())
        self.assertEqual([n for n, _ in done], [0, 1, 2])
        self.assertEqual(len({fence for _, fence in done}), 3)
        self.pool_is(pool, 0, 0)


if __name__ == "__main__":
    unittest.main()
