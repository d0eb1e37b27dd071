"""Airflow, Dagster and Prefect, with stand-ins of what the integrations use of them."""

import asyncio
import importlib
import os
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict
from unittest import mock

import berth

from .rig import Case

STANDINS = str(Path(__file__).parent / "standins")


class IntegrationTest(Case):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        sys.path.insert(0, STANDINS)
        cls.addClassCleanup(sys.path.remove, STANDINS)

    def test_berth_needs_no_framework(self) -> None:
        for name in ("airflow", "dagster", "prefect"):
            self.assertFalse(name in sys.modules and STANDINS not in str(sys.modules[name].__file__))
        self.assertEqual(importlib.import_module("berth.integrations").__name__, "berth.integrations")

    def context(self, **more: Any) -> Dict[str, Any]:
        ti: Dict[str, Any] = dict(dag_id="load", run_id="scheduled__2026-01-31T00:00:00+00:00", task_id="wait", map_index=-1, try_number=1)
        return {"ti": SimpleNamespace(**{**ti, **more})}

    def test_airflow_hook(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        base = importlib.import_module("airflow.hooks.base")
        base.CONNECTIONS["berth_default"] = dict(host=self.dev.http, password="", extra_dejson={"other": 1})
        pool = self.pool()
        with mock.patch.dict(os.environ, {"BERTH_SIDECAR": "http://127.0.0.1:1"}):
            with airflow.BerthHook("berth_default").claim({pool: 1}) as c:
                self.assertEqual(c.client.claims.get(c.id)["status"], "held")
        with airflow.BerthHook().claim({pool: 1}):
            self.pool_is(pool, 1, 0)
        self.pool_is(pool, 0, 0)

    def test_airflow_sensor(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        pool = self.pool()
        sensor = airflow.BerthSensor({pool: 1}, task_id="wait", priority=2)
        self.assertEqual(sensor.mode, "reschedule")
        with berth.claim({pool: 1}):
            self.assertFalse(sensor.poke(self.context()))
            self.assertFalse(sensor.poke(self.context()))
            self.pool_is(pool, 1, 1)
        done: Any = None
        while not done:  # each in another process, in Airflow
            done = airflow.BerthSensor({pool: 1}, task_id="wait", priority=2).poke(self.context())
        self.pool_is(pool, 1, 0)
        with airflow.BerthHook().continued(done.xcom_value) as c:
            info = berth.Client().claims.get(c.id)
            self.assertEqual((info["labels"], info["step_key"], info["priority"]), ({"dag": "load", "task": "wait"}, "wait", 2))
            self.pool_is(pool, 1, 0)
        self.pool_is(pool, 0, 0)

    def test_nobody_can_guess_the_client_token_of_an_airflow_sensor(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        variables: Dict[str, str] = importlib.import_module("airflow.models").VARIABLES
        pool = self.pool()
        with self.assertLogs("airflow.task", "INFO") as logs:
            xcom = self.slots_of(airflow, pool)
            # Another process, as after a restart of the worker, finds the claim again.
            self.assertEqual(self.slots_of(airflow, pool), xcom)
        with self.assertRaises(berth.BerthError) as guess:
            berth.Claim(**{**xcom, "client_token": xcom["id"], "wait": 0}).acquire()
        self.assertEqual(guess.exception.code, "id_in_use")
        (name,) = variables  # of which Airflow masks the values in lists and logs, since it says token
        self.assertRegex(name, "token")
        self.assertRegex(variables[name], "^[0-9a-f]{32,}$")
        info = berth.Client().claims.get(xcom["id"])
        for shown in (name, xcom, logs.output, info):
            self.assertNotIn(variables[name], str(shown))
        with airflow.BerthHook().continued(xcom):
            self.pool_is(pool, 1, 0)
        self.assertEqual(variables, {})
        # Each attempt has its own.
        first, second = airflow._token("a"), airflow._token("b")
        self.assertNotEqual(first, second)
        self.assertEqual((airflow._token("a"), airflow._token("b")), (first, second))
        variables.clear()

    def slots_of(self, airflow: Any, pool: str) -> Any:
        """Poll once, as a new process does, and return the XCom."""
        return airflow.BerthSensor({pool: 1}, task_id="wait").poke(self.context(run_id="guessed")).xcom_value

    def test_an_airflow_sensor_that_fails_leaves_no_client_token(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        variables: Dict[str, str] = importlib.import_module("airflow.models").VARIABLES
        reschedule = importlib.import_module("airflow.exceptions").AirflowRescheduleException
        pool = self.pool()
        sensor = airflow.BerthSensor({pool: 1}, task_id="wait", timeout=5)
        with berth.claim({pool: 1}):
            with self.assertRaises(reschedule):
                sensor.execute(self.context(run_id="failed"))
            self.assertEqual(len(variables), 1)
            with mock.patch.object(sensor, "poke", side_effect=ValueError), self.assertRaises(ValueError):
                sensor.execute(self.context(run_id="failed"))
        self.assertEqual(variables, {})

    def test_airflow_sensors_of_other_tasks_have_other_claims(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        claims = [
            airflow.claim_of(self.context(**more), {"db": 1}, "10m")["id"]
            for more in ({}, {"try_number": 2}, {"map_index": 3}, {"dag_id": "x" * 200}, {"dag_id": "x" * 201})
        ]
        self.assertEqual(len(set(claims)), 5)
        other = [
            dict(run_id="media/a b.mp4"),
            dict(run_id="media/a+b.mp4"),
            dict(run_id="media_a_b.mp4"),
            dict(dag_id="a.b", run_id="c"),
            dict(dag_id="a", run_id="b.c"),
            dict(dag_id="a", run_id="b", task_id="c.1", map_index=2),
            dict(dag_id="a", run_id="b", task_id="c", map_index=1),
            dict(run_id="é"),
            dict(run_id="è"),
            dict(run_id="x\ny", task_id="z\u202e"),
            dict(run_id="é" * 250, task_id="ü" * 250, dag_id="ä" * 250),
        ]
        found = [airflow.claim_of(self.context(**more), {"db": 1}, "10m") for more in other]
        self.assertEqual(len({c["id"] for c in found}), len(other))
        self.assertEqual(len({c["run_id"] for c in found}), len(other) - 1)
        for c in found:
            self.assertRegex(c["id"], r"^airflow[A-Za-z0-9._-]{0,88}\.[0-9a-f]{32}$")
            # The sidecar takes the names.
            pool = self.pool()
            with berth.claim(**{**c, "pools": {pool: 1}}) as held:
                info = berth.Client().claims.get(held.id)
                self.assertEqual((info["run_id"], info["step_key"], info["labels"]), (c["run_id"], c["step_key"], c["labels"]))
        self.assertLessEqual(max(map(len, claims)), 128)
        with self.assertRaisesRegex(ValueError, "^ttl: "):
            airflow.BerthSensor({"db": 1}, task_id="wait", ttl="1m", poke_interval=60)

    def test_two_airflow_runs_never_share_a_claim(self) -> None:
        airflow = importlib.import_module("berth.integrations.airflow")
        pool, held = self.pool(), []
        for run in ("media/a b.mp4", "media/a+b.mp4"):
            held.append(airflow.BerthSensor({pool: 1}, task_id="wait").poke(self.context(run_id=run)).is_done)
        self.assertEqual(held, [True, False])
        importlib.import_module("airflow.models").VARIABLES.clear()

    def test_names_of_other_systems_are_whole_characters_on_one_line(self) -> None:
        names = importlib.import_module("berth.names")
        for text in ("é" * 300, "a\nb\x00c\u2028d\u202ee", "\ud800x", "", "\U0001f600" * 200, "x" * 513):
            name, label = names.name_of(text), names.label(text)
            self.assertLessEqual(len(name.encode()), 256)
            self.assertLessEqual(len(label.encode()), 512)
            for found in (name, label):
                self.assertFalse(set(found) & set("\n\x00\u2028\u202e\ufffd"), found)
            self.assertEqual(name == text, text == "")
        self.assertEqual(names.name_of("graph.load[é]"), "graph.load[é]")
        self.assertNotEqual(names.name_of("a\nb"), names.name_of("a\tb"))
        self.assertNotEqual(names.name_of("x" * 257), names.name_of("x" * 258))

    def test_dagster(self) -> None:
        dagster = importlib.import_module("berth.integrations.dagster")
        pool = self.pool()
        context = SimpleNamespace(run_id="run-1", job_name="nightly", op_handle=SimpleNamespace(to_string=lambda: "graph.load"))
        with dagster.BerthResource(sidecar=self.dev.socket).claim(context, {pool: 1}, wait="1m") as c:
            info = berth.Client().claims.get(c.id)
            self.assertEqual((info["run_id"], info["step_key"], info["labels"]), ("run-1", "graph.load", {"job": "nightly"}))
        long = SimpleNamespace(run_id="run-1", job_name="é" * 400, op_handle=SimpleNamespace(to_string=lambda: "é" * 200))
        with dagster.BerthResource(sidecar=self.dev.socket).claim(long, {pool: 1}, wait="1m") as c:
            self.assertEqual(berth.Client().claims.get(c.id)["labels"], {"job": "é" * 256})
        self.pool_is(pool, 0, 0)

    def test_prefect(self) -> None:
        prefect = importlib.import_module("berth.integrations.prefect")
        runtime = importlib.import_module("prefect.runtime")
        pool = self.pool()
        with prefect.slots({pool: 1}) as c:  # outside of a run
            self.assertEqual(c.run_id, "")
        with mock.patch.multiple(runtime.flow_run, id="run-1", flow_name="nightly"), mock.patch.object(runtime.task_run, "name", "load-0"):
            with prefect.slots({pool: 1}, wait="1m") as c:
                info = berth.Client().claims.get(c.id)
                self.assertEqual((info["run_id"], info["step_key"], info["labels"]), ("run-1", "load-0", {"flow": "nightly"}))

            async def main() -> None:
                async with prefect.slots_async({pool: 1}, wait="1m") as held:
                    self.assertEqual(held.run_id, "run-1")

            asyncio.run(main())
        self.pool_is(pool, 0, 0)


if __name__ == "__main__":
    unittest.main()
